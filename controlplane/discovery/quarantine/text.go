// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package quarantine

import (
	"bytes"
	"strings"
	"unicode"

	"github.com/cespare/xxhash/v2"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// anyAddress replaces the address of a proxy in resources that are compared without it.
const anyAddress = "\x00"

// shapeOf returns the key of a resource without the address of its proxy. Resources with the same
// shape differ only in the address.
func shapeOf(it Item, res *xds.Resource, address string) Key {
	if shape := withAddress(res, address, anyAddress); shape != nil && shape != res {
		return Key{Item{it.Type, shape.Name}, shape.Hash}
	}
	return Key{it, res.Hash}
}

// withAddress returns a resource of the proxy with the address from in the form for the proxy with
// the address to. It returns nil if it cannot replace the address, and the resource itself if
// there is nothing to replace.
func withAddress(res *xds.Resource, from, to string) *xds.Resource {
	if res == nil || from == "" || from == to || !bytes.Contains(res.Any, []byte(from)) {
		return res
	}
	replaced := false
	b, complete := xds.MapText(res.Any, func(s string) string {
		out := replaceAddress(s, from, to)
		replaced = replaced || out != s
		return out
	})
	switch {
	case !complete || replaced && to == "":
		return nil
	case !replaced:
		return res
	}
	return &xds.Resource{Name: replaceAddress(res.Name, from, to), Hash: xxhash.Sum64(b), Any: b}
}

// replaceAddress replaces an address in a text, except where it is a part of a longer address,
// such as 10.1.1.1 in 10.1.1.12, or of a host name. A port may follow an IPv4 address.
func replaceAddress(s, from, to string) string {
	outside := func(c rune) bool {
		return c != '.' && (c != ':' || !strings.Contains(from, ":")) && !unicode.IsLetter(c) && !unicode.IsDigit(c)
	}
	var out strings.Builder
	for rest := s; rest != ""; {
		word := rest
		if i := strings.IndexFunc(rest, outside); i >= 0 {
			word = rest[:max(i, 1)]
		}
		rest = rest[len(word):]
		if word == from {
			word = to
		}
		out.WriteString(word)
	}
	return out.String()
}

// texts contains the strings of a resource, including the names of the resources that it refers
// to. It is nil if the resource cannot be decoded.
type texts map[string]bool

// has reports whether a resource may refer to a name.
func (t texts) has(name string) bool { return t == nil || t[name] }

// textsOf returns the strings of a resource. The caller holds mu.
func (q *Quarantine) textsOf(res *xds.Resource) texts {
	t, known := q.texts[res]
	if !known {
		t = texts{}
		if _, complete := xds.MapText(res.Any, func(s string) string {
			t[s] = true
			return s
		}); !complete {
			t = nil
		}
		q.texts[res] = t
	}
	return t
}
