// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/credentials/insecure"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// reportKey reports a token with an unknown key.
func (p *peer) reportKey() {
	if p.delta {
		p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: node.UnknownKeyType})
	} else {
		p.must(&discoveryv3.DiscoveryRequest{TypeUrl: node.UnknownKeyType})
	}
}

// A report of an unknown key names the sources of the workload's own issuers, and no others.
func TestUnknownKey(t *testing.T) {
	t.Parallel()
	rule := func(namespace, name, uri, keys string) *model.Config {
		return &model.Config{Key: model.Key{Kind: model.RequestAuthentication, Namespace: namespace, Name: name}, Spec: &securityv1beta1.RequestAuthentication{
			JwtRules: []*securityv1beta1.JWTRule{{Issuer: name, JwksUri: uri, Jwks: keys}},
		}}
	}
	objects := []*model.Config{
		rule("default", "own", "https://own.example/keys", ""), rule("other", "other", "https://other.example/keys", ""), rule("default", "inline", "", `{"keys":[]}`),
	}
	mesh := snapshot.Build(nil, snapshot.Input{Mesh: meshconfig.Default(), List: func(k model.Kind) []*model.Config {
		if k == model.RequestAuthentication {
			return objects
		}
		return nil
	}}, model.Change{All: true})
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan []jwks.Source, 10)
			h := &harness{table: &table{}}
			h.serve(t, Config{Generator: h.table, Workers: 2, OnUnknownKey: func(sources []jwks.Source) { asked <- sources }}, shopCaller, insecure.NewCredentials(), insecure.NewCredentials())
			h.server.Push(mesh, model.Change{All: true})
			p := h.connect(t, delta)
			p.subscribe(xds.TypeCluster)
			p.wantAck("cds")
			p.reportKey()
			select {
			case got := <-asked:
				if want := []jwks.Source{{URL: "https://own.example/keys"}}; !slices.Equal(got, want) {
					t.Errorf("sources %v, want %v", got, want)
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("no report within 2 minutes")
			}
			p.quiet()
		})
	}
}

// A report on an unauthenticated port causes no fetch.
func TestUnknownKeyNeedsIdentity(t *testing.T) {
	t.Parallel()
	s := &Server{onUnknownKey: func([]jwks.Source) { t.Error("an unauthenticated report was passed on") }}
	var nobody *authn.Caller
	s.report(&model.Proxy{}, nobody, &request{typeURL: node.UnknownKeyType})
}
