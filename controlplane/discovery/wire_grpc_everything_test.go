// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcxds "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"

	configcodec "github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// everyObject reads the objects of which the generator's own tests make
// configuration, case by case.
func everyObject(t *testing.T) map[string]map[model.Key]proto.Message {
	t.Helper()
	files, err := filepath.Glob("../generate/testdata/*/in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no objects: %v", err)
	}
	out := map[string]map[model.Key]proto.Message{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects := map[model.Key]proto.Message{}
		for doc := range bytes.SplitSeq(text, []byte("---\n")) {
			version := "networking.istio.io/v1"
			if bytes.Contains(doc, []byte("kind: PeerAuthentication")) {
				version = "security.istio.io/v1"
			}
			// What users are not let write is no matter of this test.
			found, _ := configcodec.Decode(file, append([]byte("apiVersion: "+version+"\n"), doc...))
			for _, o := range found {
				spec, ok := o.Spec.(proto.Message)
				if !ok {
					t.Fatalf("%s: %s has a spec of type %T", file, o.Name, o.Spec)
				}
				objects[o.Key] = spec
			}
		}
		out[filepath.Base(filepath.Dir(file))] = objects
	}
	return out
}

// TestGRPCTakesEverything has grpc-go's xDS client dial every host of the generator's own cases. It
// rejects nothing, and receives all requested resources.
func TestGRPCTakesEverything(t *testing.T) {
	t.Parallel()
	cases := everyObject(t)
	dialed := 0
	w := newWireMesh(t, "127.77.60.9")
	for name, objects := range cases {
		w.mu.Lock()
		clear(w.objects) // each case stands alone
		w.build(model.Change{All: true})
		w.mu.Unlock()
		w.putAll(objects)
		app := wireApp{ip: "127.77.60.45", name: "client", certificates: newWireCA(t).issue(t, "client")}
		w.mu.Lock()
		listeners := generate.New(generate.Config{}).Generate(w.mesh, &model.Proxy{
			ID: "client-1.default", Role: "sidecar", IPs: []string{app.ip}, Namespace: "default", Domain: "default.svc.cluster.local",
			Proxyless: true, Labels: map[string]string{"app": app.name}, Interception: model.InterceptionRedirect,
		}, xds.TypeListener)
		w.mu.Unlock()
		resolver, err := grpcxds.NewXDSResolverWithConfigForTesting(app.bootstrap(t, w))
		if err != nil {
			t.Fatal(err)
		}
		var wait sync.WaitGroup
		for _, l := range listeners.Resources {
			if !strings.Contains(l.Name, ".") || strings.Contains(l.Name, "/") || strings.Contains(l.Name, "*") {
				continue // short names lead to the same routes
			}
			dialed++
			wait.Go(func() {
				if err := tryTarget("xds:///"+l.Name, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithResolvers(resolver)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wait.Wait()
		// A client that ends while a response arrives rejects it for that reason.
		const ends = "xdsChannel is closed"
		for _, r := range w.server.Rejected() {
			if r.Reason != ends {
				t.Errorf("%s: rejected: %+v", name, r)
			}
		}
		for line := range strings.Lines(w.logged.String()) {
			if strings.Contains(line, "rejected") && !strings.Contains(line, ends) {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	t.Logf("%d hosts of %d cases", dialed, len(cases))
	if len(cases) < 30 || dialed < 60 {
		t.Errorf("only %d hosts of %d cases were dialed", dialed, len(cases))
	}
}

// tryTarget sends a call that need not succeed; the client must resolve its address, or know that
// there is none.
func tryTarget(target string, opts ...grpc.DialOption) error {
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return fmt.Errorf("dial %s: %w", target, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil && strings.Contains(err.Error(), "name resolver") {
		return fmt.Errorf("call %s: %w", target, err)
	}
	if err := conn.Close(); err != nil {
		return fmt.Errorf("close %s: %w", target, err)
	}
	return nil
}
