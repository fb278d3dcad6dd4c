// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasmtest

import "bytes"

// Module returns a module for Envoy's proxy-wasm ABI 0.2.1 that adds a header to each response.
func Module(header, value string) []byte {
	const (
		i32 = 0x7f
		// Type indexes, in the order of the type section.
		typeNone, typeAlloc, typeCreate, typeHeaders, typeAdd = 0, 1, 2, 3, 4
		valueAt                                               = 256
		heapAt                                                = 32768
	)
	signature := func(params, results int) []byte {
		b := append([]byte{0x60}, leb(params)...)
		b = append(b, bytes.Repeat([]byte{i32}, params)...)
		b = append(b, leb(results)...)
		return append(b, bytes.Repeat([]byte{i32}, results)...)
	}
	imported := append(wasmName("env"), wasmName("proxy_add_header_map_value")...)
	exports := [][]byte{append(wasmName("memory"), 2, 0)}
	for i, n := range []string{"proxy_abi_version_0_2_1", "proxy_on_memory_allocate", "_initialize", "proxy_on_context_create", "proxy_on_response_headers"} {
		exports = append(exports, append(wasmName(n), 0, byte(1+i)))
	}
	add := []byte{0x41, 2, 0x41, 0} // of the response, key at 0
	add = append(append(add, 0x41), sleb(len(header))...)
	add = append(append(add, 0x41), sleb(valueAt)...)
	add = append(append(add, 0x41), sleb(len(value))...)
	add = append(add, 0x10, 0, 0x1a, 0x41, 0) // call, drop, continue
	return bytes.Join([][]byte{
		[]byte("\x00asm\x01\x00\x00\x00"),
		section(1, signature(0, 0), signature(1, 1), signature(2, 0), signature(3, 1), signature(5, 1)),
		section(2, append(imported, 0, typeAdd)),
		section(3, []byte{typeNone}, []byte{typeAlloc}, []byte{typeNone}, []byte{typeCreate}, []byte{typeHeaders}),
		section(5, []byte{0, 16}), // memory: 1 MiB
		section(6, append(append([]byte{i32, 1, 0x41}, sleb(heapAt)...), 0x0b)),
		section(7, exports...),
		section(10, body(), body(0x23, 0, 0x23, 0, 0x20, 0, 0x6a, 0x24, 0), body(), body(), body(add...)),
		section(11, data(0, header), data(valueAt, value)),
	}, nil)
}

func section(id byte, items ...[]byte) []byte {
	b := append(leb(len(items)), bytes.Join(items, nil)...)
	return append(append([]byte{id}, leb(len(b))...), b...)
}

func body(code ...byte) []byte {
	b := append(append([]byte{0}, code...), 0x0b)
	return append(leb(len(b)), b...)
}

func data(at int, s string) []byte {
	b := append([]byte{0, 0x41}, sleb(at)...)
	b = append(append(b, 0x0b), leb(len(s))...)
	return append(b, s...)
}

func wasmName(s string) []byte { return append(leb(len(s)), s...) }

// leb encodes an integer as unsigned LEB128.
func leb(n int) []byte {
	var b []byte
	for {
		c := byte(n & 0x7f)
		if n >>= 7; n == 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

// sleb encodes a non-negative integer as signed LEB128.
func sleb(n int) []byte {
	var b []byte
	for {
		c := byte(n & 0x7f)
		if n >>= 7; n == 0 && c&0x40 == 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}
