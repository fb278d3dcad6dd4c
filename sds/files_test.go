// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/sds"
)

const (
	chainFile = "cert-chain.pem"
	keyFile   = "key.pem"
	rootsFile = "root-cert.pem"
)

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// replace atomically replaces a file with a new one.
func replace(t *testing.T, path string, data []byte) {
	t.Helper()
	write(t, path+".new", data)
	rename(t, path+".new", path)
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// chainIn returns the certificate chain in the only secret of a response.
func chainIn(t *testing.T, resp *discoveryv3.DiscoveryResponse) []byte {
	t.Helper()
	return decode(t, resp.GetResources()[0]).GetTlsCertificate().GetCertificateChain().GetInlineBytes()
}

func rootsIn(t *testing.T, resp *discoveryv3.DiscoveryResponse) []byte {
	t.Helper()
	return decode(t, resp.GetResources()[0]).GetValidationContext().GetTrustedCa().GetInlineBytes()
}

// TestHundredVolumeRotations replaces chain and key like Kubernetes does. Each rotation must
// reach the stream through file events alone.
func TestHundredVolumeRotations(t *testing.T) {
	t.Parallel()
	r := newFileRig(t, nil)
	v := &volume{t: t, dir: t.TempDir()}
	name := "file-cert:" + v.path(chainFile) + "~" + v.path(keyFile)
	s := r.stream(t)
	var last *discoveryv3.DiscoveryResponse
	var slowest time.Duration
	for n := range 100 {
		chain, key := r.pair(nil)
		v.write(map[string][]byte{chainFile: chain, keyFile: key})
		start := time.Now()
		if n == 0 {
			s.ask(nil, "", name)
		}
		last = s.next(name)
		slowest = max(slowest, time.Since(start))
		cert := decode(t, last.GetResources()[0]).GetTlsCertificate()
		if !bytes.Equal(cert.GetCertificateChain().GetInlineBytes(), chain) || !bytes.Equal(cert.GetPrivateKey().GetInlineBytes(), key) {
			t.Fatalf("rotation %d: the secret differs from the files", n)
		}
	}
	t.Logf("the slowest of 100 rotations took %s", slowest)
	s.ask(last, "", name)
	s.none("after the last rotation")
}

// TestWaysToReplaceFiles checks that a change of a file with roots is noticed, however the file is
// replaced.
func TestWaysToReplaceFiles(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, dir string, data []byte){
		"renamed over": func(t *testing.T, dir string, data []byte) {
			replace(t, filepath.Join(dir, "current", rootsFile), data)
		},
		"written in place": func(t *testing.T, dir string, data []byte) {
			write(t, filepath.Join(dir, "current", rootsFile), data)
		},
		"emptied, then written in parts": func(t *testing.T, dir string, data []byte) {
			f, err := os.OpenFile(filepath.Join(dir, "current", rootsFile), os.O_WRONLY|os.O_TRUNC, 0)
			if err != nil {
				t.Fatal(err)
			}
			for part := range slices.Chunk(data, 100) {
				if _, err := f.Write(part); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond) // like a slow writer
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"removed, then made again": func(t *testing.T, dir string, data []byte) {
			path := filepath.Join(dir, "current", rootsFile)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, data)
		},
		"a link in the middle is replaced": func(t *testing.T, dir string, data []byte) {
			if err := os.Mkdir(filepath.Join(dir, "other"), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "other", rootsFile), data)
			if err := os.Symlink("other", filepath.Join(dir, "tmp")); err != nil {
				t.Fatal(err)
			}
			rename(t, filepath.Join(dir, "tmp"), filepath.Join(dir, "current"))
		},
		"the directory is replaced": func(t *testing.T, dir string, data []byte) {
			rename(t, filepath.Join(dir, "real"), filepath.Join(dir, "old"))
			if err := os.Mkdir(filepath.Join(dir, "new"), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "new", rootsFile), data)
			rename(t, filepath.Join(dir, "new"), filepath.Join(dir, "real"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Once the directory has been moved away, only its parent can be watched at the old
			// path. The back-off covers this case, so it must be short.
			r := newFileRig(t, func(c *sds.FilesConfig) { c.Debounce = 20 * time.Millisecond })
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "real"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("real", filepath.Join(dir, "current")); err != nil {
				t.Fatal(err)
			}
			before, after := certs.EncodeChain(r.root), certs.EncodeChain(newAuthority(t).root, newAuthority(t).root, newAuthority(t).root)
			write(t, filepath.Join(dir, "real", rootsFile), before)
			resource := "file-root:" + filepath.Join(dir, "current", rootsFile)
			s := r.stream(t)
			s.ask(nil, "", resource)
			if got := rootsIn(t, s.next(resource)); !bytes.Equal(got, before) {
				t.Fatal("the secret differs from the file")
			}
			change(t, dir, after)
			if got := rootsIn(t, s.next(resource)); !bytes.Equal(got, after) {
				n, err := certs.ParseChain(got)
				t.Fatalf("after the change, the secret has %d roots and differs from the file, error %v", len(n), err)
			}
			s.none("after the change")
		})
	}
}

// TestBrokenFilesKeepTheLastGood breaks the files in several ways. The last valid secret must
// remain in force and be sent on new streams.
func TestBrokenFilesKeepTheLastGood(t *testing.T) {
	t.Parallel()
	r := newFileRig(t, func(c *sds.FilesConfig) { c.Debounce = 10 * time.Millisecond })
	dir := t.TempDir()
	chainPath, keyPath := filepath.Join(dir, chainFile), filepath.Join(dir, keyFile)
	chain, key := r.pair(nil)
	write(t, chainPath, chain)
	write(t, keyPath, key)
	name := "file-cert:" + chainPath + "~" + keyPath
	s := r.stream(t)
	s.ask(nil, "", name)
	s.next(name)
	newChain, newKey := r.pair(nil)
	for _, tc := range []struct {
		what string
		step func()
	}{
		{"does not belong", func() { replace(t, keyPath, newKey) }},
		{"no PEM block", func() { replace(t, chainPath, []byte("nonsense")) }},
		{"is empty", func() { replace(t, chainPath, nil) }},
		{"no such file", func() { remove(t, chainPath) }},
		{"not a regular", func() {
			if err := os.Mkdir(chainPath, 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		{"can be read again", func() {
			remove(t, chainPath)
			write(t, chainPath, chain)
			replace(t, keyPath, key)
		}},
	} {
		what := tc.what
		tc.step()
		eventually(t, "a line with "+what, func() bool { return strings.Contains(r.log.String(), what) })
		s.none(what)
		other := r.stream(t)
		other.ask(nil, "", name)
		if got := chainIn(t, other.next(name)); !bytes.Equal(got, chain) {
			t.Errorf("%s: a new stream did not receive the last valid chain", what)
		}
	}
	replace(t, chainPath, newChain)
	replace(t, keyPath, newKey)
	if got := chainIn(t, s.next(name)); !bytes.Equal(got, newChain) {
		t.Error("the new chain is not served")
	}
}

func TestMissingFiles(t *testing.T) {
	t.Parallel()
	r := newFileRig(t, nil)
	dir := t.TempDir()
	missing, there := "file-root:"+filepath.Join(dir, "a", "b", rootsFile), "file-root:"+filepath.Join(dir, rootsFile)
	write(t, filepath.Join(dir, rootsFile), certs.EncodeChain(r.root))
	s := r.stream(t)
	s.ask(nil, "", missing, there, "file-root:", "file-root:system~x")
	resp := s.next(there)
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a", "b", rootsFile), certs.EncodeChain(r.root))
	s.next(missing)
	eventually(t, "a line about the name", func() bool { return strings.Contains(r.log.String(), "the path of a file is empty") })
	if resp.GetNonce() == "" {
		t.Error("a response has no nonce")
	}
}

// TestRescan checks that the periodic rescan notices changes that cause no events. The file is
// changed through a hard link in a directory that is not watched.
func TestRescan(t *testing.T) {
	t.Parallel()
	r := newFileRig(t, func(c *sds.FilesConfig) { c.Rescan = 50 * time.Millisecond })
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "x")
	before, after := certs.EncodeChain(r.root), certs.EncodeChain(newAuthority(t).root)
	write(t, filepath.Join(dir, rootsFile), before)
	if err := os.Link(filepath.Join(dir, rootsFile), elsewhere); err != nil {
		t.Fatal(err)
	}
	name := "file-root:" + filepath.Join(dir, rootsFile)
	s := r.stream(t)
	s.ask(nil, "", name)
	s.next(name)
	write(t, elsewhere, after)
	if got := rootsIn(t, s.next(name)); !bytes.Equal(got, after) {
		t.Error("the change was not noticed")
	}
}

func TestFilesOverDeltaAndFetch(t *testing.T) {
	t.Parallel()
	r := newFileRig(t, nil)
	path := filepath.Join(t.TempDir(), rootsFile)
	name, missing := "file-root:"+path, "file-root:"+path+".not"
	write(t, path, certs.EncodeChain(r.root))
	stream, err := r.client.DeltaSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{name, missing, "file-cert:x"}}); err != nil {
		t.Fatal(err)
	}
	removed := false
	for versions := map[string]bool{}; len(versions) < 2 || !removed; {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		removed = removed || slices.Equal(resp.GetRemovedResources(), []string{"file-cert:x"})
		for _, res := range resp.GetResources() {
			if res.GetName() != name {
				t.Fatalf("got resource %s, want %s", res.GetName(), name)
			}
			versions[res.GetVersion()] = true
			replace(t, path, certs.EncodeChain(r.root, newAuthority(t).root))
		}
	}
	resp, err := r.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{ResourceNames: []string{name}})
	if err != nil || len(resp.GetResources()) != 1 {
		t.Errorf("Fetch: got %v, error %v; want one secret", resp, err)
	}
	_, err = r.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{ResourceNames: []string{missing}})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing file: got error %v, want Unavailable", err)
	}
}

func TestFileNamesWithoutFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t, newAuthority(t)).ready(t)
	path := filepath.Join(t.TempDir(), rootsFile)
	write(t, path, certs.EncodeChain(r.root))
	s := r.stream(t)
	s.ask(nil, "", "file-root:"+path, sds.NameRoots)
	s.next(sds.NameRoots)
	resp, err := r.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{ResourceNames: []string{"file-root:" + path}})
	if err != nil || len(resp.GetResources()) != 0 {
		t.Errorf("got %v, error %v; want no secrets", resp, err)
	}
	if _, err := sds.NewServer(sds.ServerConfig{KeyProvider: &sds.KeyProvider{}}); err == nil {
		t.Error("NewServer accepted a configuration without secrets")
	}
}

func TestRootsOfTheSystem(t *testing.T) {
	t.Parallel()
	const bundle = "/etc/ssl/certs/ca-certificates.crt"
	want, err := os.ReadFile(bundle)
	if err != nil {
		t.Skipf("the test needs %s, which has precedence: install ca-certificates", bundle)
	}
	r := newFileRig(t, nil)
	s := r.stream(t)
	s.ask(nil, "", "file-root:system")
	if got := rootsIn(t, s.next("file-root:system")); !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, want the %d of %s", len(got), len(want), bundle)
	}
}
