// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestNormalized(t *testing.T) {
	t.Parallel()
	base := &hcmv3.HttpConnectionManager{NormalizePath: wrapperspb.Bool(true)}
	merge := &hcmv3.HttpConnectionManager{NormalizePath: wrapperspb.Bool(true), MergeSlashes: true}
	decode := &hcmv3.HttpConnectionManager{NormalizePath: wrapperspb.Bool(true), MergeSlashes: true, PathWithEscapedSlashesAction: hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD}
	for _, c := range []struct {
		hcm        *hcmv3.HttpConnectionManager
		path, want string // an empty path is refused
	}{
		{&hcmv3.HttpConnectionManager{}, "/a/../b//%61?x=/../y", "/a/../b//%61?x=/../y"},
		{base, "/a/../b//c/.?x=/../y", "/b//c/?x=/../y"},
		{base, "/a/%2e%2E/b/./c/..", "/b/"},
		{base, "/../../a", "/a"},
		{base, "/a/.../b/..c/.d", "/a/.../b/..c/.d"},
		{base, `/a\b\..\c`, "/a/c"},
		{base, "/%61%2d%2E%5f%7e%2f%41%3f%zz%4", "/a-._~%2f" + "A%3f%zz%4"},
		{base, "/a b\"|", "/a%20b%22%7C"},
		{base, "/\xc3\xa9\xff", "/%C3%A9%EF%BF%BD"},
		{base, "/a/..;x=1/b;y", "/b;y"},
		{base, "/a%00", ""},
		{base, "/a#b", ""},
		{base, "a", ""},
		{merge, "/a//b///c?d//e", "/a/b/c?d//e"},
		{merge, "/a%2f%2Fb", "/a%2f%2Fb"},
		{decode, "/a%2f%2Fb%5c..%5Cc", "/a/c"},
	} {
		got, err := normalized(c.hcm, c.path, parametersSince)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%q: got %q, %v, want %q", c.path, got, err, c.want)
		}
	}
	if got, err := normalized(base, "/a/..;x/b", parametersSince-1); got != "/a/..;x/b" {
		t.Errorf("an older Envoy: got %q, %v", got, err)
	}
}

func FuzzNormalized(f *testing.F) {
	for _, seed := range []string{"/", "/a/../b", "/%2e%2e;/x", "/%", "/\xff", "/a?b#c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		hcm := &hcmv3.HttpConnectionManager{NormalizePath: wrapperspb.Bool(true), MergeSlashes: true, PathWithEscapedSlashesAction: hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD}
		once, err := normalized(hcm, path, parametersSince)
		if err != nil {
			return
		}
		if once == "" || once[0] != '/' {
			t.Errorf("%q becomes %q", path, once)
		}
		if len(once) > 3*len(path)*3 {
			t.Errorf("%q becomes %d bytes", path, len(once))
		}
	})
}
