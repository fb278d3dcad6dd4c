// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"slices"
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		kind    kind
		paths   []string
		wantErr string
	}{
		{name: "default", kind: kindLeaf},
		{name: "builtin://", kind: kindLeaf},
		{name: "ROOTCA", kind: kindRoots},
		{name: "builtin://-cacert", kind: kindRoots},
		{name: "file-root:system", kind: kindSystemRoots},
		{name: "file-root:/etc/certs/root-cert.pem", kind: kindFileRoots, paths: []string{"/etc/certs/root-cert.pem"}},
		{name: "file-root:./a b", kind: kindFileRoots, paths: []string{"./a b"}},
		{name: "file-cert:/c.pem~/k.pem", kind: kindFileCert, paths: []string{"/c.pem", "/k.pem"}},
		{name: "file-cert:/c.pem", wantErr: "one ~"},
		{name: "file-cert:/c.pem~/k.pem~/ca.pem", wantErr: "one ~"},
		{name: "file-cert:~/k.pem", wantErr: "is empty"},
		{name: "file-cert:/c.pem~", wantErr: "is empty"},
		{name: "file-root:", wantErr: "is empty"},
		{name: "file-root:/a\x00b", wantErr: "zero byte"},
		{name: "file-root:/" + strings.Repeat("a", 4096), wantErr: "at most 4095"},
		{name: "", wantErr: "only default"},
		{name: "Default", wantErr: "only default"},
		{name: "kubernetes://gateway", wantErr: "only default"},
		{name: "builtin://x", wantErr: "only default"},
	} {
		r, err := parseName(tc.name)
		if tc.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("parseName(%q): got error %v, want one with %q", tc.name, err, tc.wantErr)
			}
			continue
		}
		if err != nil || r.kind != tc.kind || !slices.Equal(r.paths, tc.paths) {
			t.Errorf("parseName(%q) = %+v, %v", tc.name, r, err)
		}
	}
}

// FuzzParseName checks that a name built from the parsed parts equals the original.
func FuzzParseName(f *testing.F) {
	for _, name := range []string{"default", "ROOTCA", "file-cert:/a~/b", "file-root:/a", "file-root:system", "builtin://-cacert", "file-cert:a~b~c"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		r, err := parseName(name)
		if err != nil {
			return
		}
		again := map[kind]string{kindLeaf: "default", kindRoots: "ROOTCA", kindSystemRoots: "file-root:system"}[r.kind]
		switch r.kind {
		case kindFileCert:
			again = "file-cert:" + r.paths[0] + "~" + r.paths[1]
		case kindFileRoots:
			again = "file-root:" + r.paths[0]
		}
		if again != name && !strings.HasPrefix(name, "builtin://") {
			t.Errorf("parseName(%q) has the parts of %q", name, again)
		}
		for _, p := range r.paths {
			if p == "" || strings.ContainsRune(p, 0) {
				t.Errorf("parseName(%q) has the path %q", name, p)
			}
		}
	})
}
