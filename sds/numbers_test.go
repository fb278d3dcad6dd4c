// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/sds/caclient"
)

// pushes changes the roots count times and returns the sorted delays until a stream receives each
// change.
func pushes(t testing.TB, count int) []time.Duration {
	t.Helper()
	r := newRig(t, newAuthority(t)).ready(t)
	s := r.stream(t)
	s.ask(nil, "", sds.NameRoots)
	last := s.next(sds.NameRoots)
	anchors := [][][]byte{{certs.EncodeChain(newAuthority(t).root)}, {certs.EncodeChain(newAuthority(t).root)}}
	var took []time.Duration
	for n := range count {
		s.ask(last, "", sds.NameRoots)
		start := time.Now()
		if err := r.workload.SetAnchors(anchors[n%2]); err != nil {
			t.Fatal(err)
		}
		last = s.next(sds.NameRoots)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took
}

func TestChangesArePushedImmediately(t *testing.T) {
	t.Parallel()
	took := pushes(t, 101)
	t.Logf("median %s, slowest %s", took[50], took[100])
	// A push takes less than a millisecond. Only one that waits for a timer takes this long.
	if took[50] > time.Second {
		t.Errorf("half of the changes took %s or more, want no wait", took[50])
	}
}

// BenchmarkPush reports the median delay of a push.
func BenchmarkPush(b *testing.B) {
	var took []time.Duration
	for b.Loop() {
		took = pushes(b, 101)
	}
	b.ReportMetric(took[50].Seconds()*1e3, "ms/push")
}

// heap returns the size of the live objects on the heap.
func heap() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// maxGrowth is the allowed growth of the heap after 1,000 rotations. Each rotation handles more
// than 10 kB, so a leak of 300 bytes per rotation is detected.
const maxGrowth = 256 << 10

// The following two tests are not parallel, because they measure the heap.

func TestMemoryAfterThousandRotationsOfFiles(t *testing.T) {
	v := &volume{t: t, dir: t.TempDir()}
	r := mounted(t, v.dir, nil)
	files := map[string][]byte{rootsFile: certs.EncodeChain(r.root)}
	stream, err := r.client.StreamSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResourceNames: []string{sds.NameDefault}}); err != nil {
		t.Fatal(err)
	}
	rotate := func() {
		files[chainFile], files[keyFile] = r.pair(nil)
		v.write(files)
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResourceNames: []string{sds.NameDefault}, ResponseNonce: resp.GetNonce()}); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		rotate()
	}
	r.log.drop()
	before := heap()
	for range 1000 {
		rotate()
	}
	r.log.drop()
	grown := heap() - before
	t.Logf("the heap has grown by %d bytes", grown)
	if grown > maxGrowth {
		t.Errorf("the heap grew by %d bytes in 1,000 rotations, want at most %d", grown, maxGrowth)
	}
}

func TestMemoryAfterThousandRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		w := newWorkload(t, a, func(c *sds.WorkloadConfig) { c.TTL = time.Hour }) // the root must outlive all certificates
		run(t, w)
		renew := func(n int) {
			for until := len(a.times()) + n; len(a.times()) < until; synctest.Wait() {
				<-w.Changed()
			}
		}
		renew(50)
		before := heap()
		renew(1000)
		grown := heap() - before - 24*1000 // the times recorded by the authority
		t.Logf("the heap has grown by %d bytes", grown)
		if grown > maxGrowth {
			t.Errorf("the heap grew by %d bytes in 1,000 renewals, want at most %d", grown, maxGrowth)
		}
	})
}

// BenchmarkFirstSecret measures the time until a stream receives the first secret, with an
// authority on the same machine. It includes key, request, TLS, certificate and socket.
func BenchmarkFirstSecret(b *testing.B) {
	ca := newCAServer(b)
	roots := x509.NewCertPool()
	roots.AddCert(ca.root)
	for b.Loop() {
		firstSecret(b, ca, roots)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/secret")
}

func firstSecret(b *testing.B, ca *caServer, roots *x509.CertPool) {
	ctx, cancel := context.WithCancel(b.Context())
	client, err := caclient.New(caclient.Config{
		Address: ca.address, ServerName: caName, Logger: quiet(), Token: func() (string, error) { return "first", nil },
		TLS: func() (*tls.Config, error) { return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	workload := newWorkload(b, ca.authority, func(c *sds.WorkloadConfig) { c.Sign = client.Sign })
	socket := filepath.Join(b.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	server, err := sds.NewServer(sds.ServerConfig{Listener: l, Workload: workload, Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	for _, part := range []func(context.Context) error{client.Run, workload.Run, server.Run} {
		running.Go(func() {
			if err := part(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err != nil {
		b.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResourceNames: []string{sds.NameDefault}}); err != nil {
		b.Fatal(err)
	}
	if resp, err := stream.Recv(); err != nil || len(resp.GetResources()) != 1 {
		b.Fatalf("got %v, error %v", resp, err)
	}
	cancel()
	running.Wait()
	_ = conn.Close() // everything has been read
}
