// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import "github.com/outrigger-mesh/outrigger/xdsproxy/wasm/wasmtest"

func testModule(header, value string) []byte { return wasmtest.Module(header, value) }
