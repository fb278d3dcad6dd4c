// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"bytes"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// FuzzRewrite rewrites arbitrary bytes as a resource. The result must be valid and must not contain
// the agent's hints.
func FuzzRewrite(f *testing.F) {
	s := pluginSpec{name: "p", url: "gopher://x", sha256: "00", env: hints()}
	open := s
	open.failOpen = true
	f.Add(s.resource(f))
	f.Add(open.structured(f, true))
	f.Add(s.structured(f, false))
	f.Add(pack(f, "p", s.want("/m.wasm")))
	f.Add([]byte{})
	c, err := New(Config{Dir: f.TempDir()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.Contains(b, []byte("http")) || bytes.Contains(b, []byte("oci")) {
			return // avoid name resolution
		}
		o := c.Rewrite(t.Context(), [][]byte{b})[0]
		if (o.Err == nil) == (o.Fallback != "") {
			t.Fatalf("outcome %+v", o)
		}
		if o.Err != nil || bytes.Equal(o.Resource, b) {
			return
		}
		a, e := &anypb.Any{}, &corev3.TypedExtensionConfig{}
		if err := proto.Unmarshal(o.Resource, a); err != nil {
			t.Fatal(err)
		}
		if messageName(a.GetTypeUrl()) != extensionType {
			return
		}
		if err := proto.Unmarshal(a.GetValue(), e); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzResponse rewrites arbitrary bytes as a response.
func FuzzResponse(f *testing.F) {
	s := pluginSpec{name: "p", url: "gopher://x"}.resource(f)
	f.Add(wire.Append(nil, wire.ResponseResources, s), false)
	f.Add(wire.Append(nil, wire.ResponseResources, wire.Append(nil, wire.ResourceAny, s)), true)
	c, err := New(Config{Dir: f.TempDir()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, delta bool) {
		if bytes.Contains(b, []byte("http")) || bytes.Contains(b, []byte("oci")) {
			return // avoid name resolution
		}
		r := c.RewriteResponse(t.Context(), b, delta)
		if r.Frame == nil && len(b) > 0 && len(r.Failures) == 0 {
			t.Fatal("there is neither a response nor a failure")
		}
		if err := eachField(r.Frame, func(wire.Field) error { return nil }); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzURL sets an arbitrary URL in a plugin: it is rejected, or identifies a module with a unique
// path below the directory.
func FuzzURL(f *testing.F) {
	for _, url := range []string{
		"http://h/x", "https://u:p@h:1/x?y#z", "oci://h/x:v1", "oci://h:5000/x@sha256:" + strings.Repeat("0", 64), "oci://", "oci://x",
		"file:///x/../y", "http://[::1%25eth0]/", "//h", "http:x", "HTTP://h", "oci://../../x", "\x00",
	} {
		f.Add(url, "")
	}
	f.Add("http://h", strings.Repeat("A", 64))
	c, err := New(Config{Dir: f.TempDir()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, url, checksum string) {
		r, err := newRequest("p", plugin{uri: url, sha256: checksum, hints: map[string]string{}})
		if err != nil {
			return
		}
		_ = r.shown()
		if r.checksum != "" && !isDigest(r.checksum) {
			t.Fatalf("checksum %q", r.checksum)
		}
		if r.url.Scheme == "oci" != (r.image != nil) {
			t.Fatalf("%q has no image", url)
		}
		path := c.store.path(moduleKey{Module: digest(r.module), Checksum: digest("x")})
		if !strings.HasPrefix(path, c.cfg.Dir+"/") || strings.Contains(path, "..") {
			t.Fatalf("path %s", path)
		}
	})
}
