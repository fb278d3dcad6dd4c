// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/sds"
)

// pair returns a certificate of the authority and its key, encoded as in files.
func (a *authority) pair(change func(*x509.Certificate)) (chain, key []byte) {
	a.t.Helper()
	k, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		a.t.Fatal(err)
	}
	key, err = certs.MarshalKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return certs.EncodeChain(a.leaf(k.Public(), func(c *x509.Certificate) {
		c.URIs = []*url.URL{{Scheme: "spiffe", Host: "td", Path: "/ns/a/sa/b"}}
		if change != nil {
			change(c)
		}
	})), key
}

// volume is a directory that is laid out like a Kubernetes volume: each file is a link into a
// directory that is itself behind a link. Replacing that link replaces all files.
type volume struct {
	t   *testing.T
	dir string
	n   int
}

func (v *volume) path(name string) string { return filepath.Join(v.dir, name) }

// write atomically replaces all files.
func (v *volume) write(files map[string][]byte) {
	v.t.Helper()
	check := func(err error) {
		v.t.Helper()
		if err != nil {
			v.t.Fatal(err)
		}
	}
	old := fmt.Sprintf("..%d", v.n)
	v.n++
	now := fmt.Sprintf("..%d", v.n)
	check(os.Mkdir(v.path(now), 0o755))
	for name, data := range files {
		check(os.WriteFile(filepath.Join(v.path(now), name), data, 0o600))
	}
	check(os.Symlink(now, v.path("..data_tmp")))
	check(os.Rename(v.path("..data_tmp"), v.path("..data")))
	if v.n == 1 {
		for _, name := range slices.Sorted(maps.Keys(files)) {
			check(os.Symlink(filepath.Join("..data", name), v.path(name)))
		}
		return
	}
	check(os.RemoveAll(v.path(old)))
}

// newFiles runs a Files whose back-off and rescans are by default too slow to help a test, so that
// changes are noticed by watching alone.
func newFiles(t *testing.T, log *slog.Logger, change func(*sds.FilesConfig)) *sds.Files {
	t.Helper()
	cfg := sds.FilesConfig{Debounce: time.Hour, Rescan: time.Hour, Logger: log}
	if change != nil {
		change(&cfg)
	}
	f, err := sds.NewFiles(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, f)
	return f
}

// newFileRig runs a server of files whose workload never gets a certificate.
func newFileRig(t *testing.T, change func(*sds.FilesConfig)) *rig {
	t.Helper()
	r := &rig{authority: newAuthority(t), log: &syncBuffer{}}
	logger := r.logger()
	r.workload = newWorkload(t, r.authority, func(c *sds.WorkloadConfig) { c.Logger = logger })
	r.serve(t, sds.ServerConfig{Workload: r.workload, Files: newFiles(t, logger, change), Logger: logger})
	return r
}

func (r *rig) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// serve runs a server and connects a client to it.
func (r *rig) serve(t testing.TB, cfg sds.ServerConfig) {
	t.Helper()
	r.socket = filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener = l
	s, err := sds.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	conn, err := grpc.NewClient("unix://"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r.client = secretv3.NewSecretDiscoveryServiceClient(conn)
}
