// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// identities is a server with a TLS port, where callers prove their identities
// by certificate, and a plaintext port.
type identities struct {
	*harness
	root   minted
	plain  string // address of the plaintext port
	logged *journal
}

func startIdentities(t *testing.T, cfg Config) *identities {
	t.Helper()
	h := &identities{harness: &harness{table: &table{}}, root: mint(t, "root"), logged: &journal{}}
	h.patience(time.Minute)
	if cfg.Generator == nil {
		cfg.Generator = h.table
	}
	cfg.Workers, cfg.CanaryPush, cfg.Logger = 2, true, slog.New(slog.NewTextHandler(h.logged, nil))
	auth, err := authn.NewClientCertificate("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	server, client := h.root.issue(t, "server").tls(h.root)
	h.serve(t, cfg, auth, credentials.NewTLS(server), credentials.NewTLS(client))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.plain = l.Addr().String()
	g := grpc.NewServer(grpc.ForceServerCodecV2(Codec()))
	h.server.Register(g, nil)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return h
}

// as opens a stream as a service account of the namespace default; empty uses
// the plaintext port. All streams claim the same node.
func (h *identities) as(t *testing.T, account string, delta bool) *peer {
	t.Helper()
	address, creds := h.plain, insecure.NewCredentials()
	if account != "" {
		_, client := h.root.issueTo(t, "default", account).tls(h.root)
		address, creds = h.address, credentials.NewTLS(client)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	own := &harness{table: h.table, server: h.server, client: discoveryv3.NewAggregatedDiscoveryServiceClient(conn)}
	p := own.connect(t, delta)
	delete(p.node.Metadata.Fields, "SERVICE_ACCOUNT")
	p.node.UserAgentName = "envoy"
	p.node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: "1.39.3"}
	return p
}

// takeListener receives the only listener.
func (p *peer) takeListener(line string) *peer {
	p.t.Helper()
	p.subscribe(xds.TypeListener)
	p.wantAck(line)
	p.quiet()
	return p
}

// A resource that one identity rejects is not withheld from another one that claims the same, nor
// from anyone because of a stream on the plaintext port.
func TestRejectionOfAnotherIdentity(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ victim, attacker string }{
		"another account":           {"pay", "web"},
		"plaintext":                 {"pay", ""},
		"another plaintext stream":  {"", ""},
		"plaintext, by an identity": {"", "pay"},
	} {
		for _, delta := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, delta %t", name, delta), func(t *testing.T) {
				t.Parallel()
				h := startIdentities(t, Config{})
				h.set(xds.TypeListener, map[string]string{"l": "l=1"})
				h.push()
				victim := h.as(t, tc.victim, delta).takeListener("lds l=1")
				var attackers []*peer
				for range 3 {
					attackers = append(attackers, h.as(t, tc.attacker, delta).takeListener("lds l=1"))
				}
				h.set(xds.TypeListener, map[string]string{"l": "l=2"})
				h.push()
				// One of them at least receives what was made.
				rejecting := func() (n int) {
					for _, p := range attackers {
						if len(p.got) > 0 {
							n++
						}
					}
					return n
				}
				until(t, "an attacker receives the change", func() bool { return rejecting() > 0 })
				for _, p := range attackers {
					if len(p.got) > 0 {
						p.want("lds l=2")
						p.nack(xds.TypeListener, "Error adding/updating listener(s) l: bad config")
						p.quiet()
					}
				}
				victim.wantAck("lds l=2")
				victim.quiet()
				h.as(t, tc.victim, delta).takeListener("lds l=2") // after a restart
				for _, r := range h.server.Rejected() {
					want := ""
					if tc.attacker != "" {
						want = "spiffe://cluster.local/ns/default/sa/" + tc.attacker
					}
					if r.Identity != want {
						t.Errorf("rejected by %q, want %q", r.Identity, want)
					}
				}
				if tc.attacker == "web" && !strings.Contains(h.logged.String(), "identity=spiffe://cluster.local/ns/default/sa/web") {
					t.Errorf("the log does not name who rejected it:\n%s", h.logged)
				}
			})
		}
	}
}

// An identity cannot make many groups by many user agents, and what it rejected
// on the plaintext port is not remembered after its stream.
func TestGroupsAreBounded(t *testing.T) {
	t.Parallel()
	h := startIdentities(t, Config{})
	h.set(xds.TypeListener, map[string]string{"l": "l=1"})
	h.push()
	var all []*peer
	for i := range 20 {
		p := h.as(t, "web", true)
		p.node.UserAgentName = fmt.Sprint("program ", i)
		p.subscribe(xds.TypeListener)
		p.want("lds l=1")
		p.nack(xds.TypeListener, "Error adding/updating listener(s) l: bad")
		p.quiet()
		all = append(all, p)
	}
	p := h.as(t, "", true)
	p.subscribe(xds.TypeListener)
	p.want("lds l=1")
	p.nack(xds.TypeListener, "Error adding/updating listener(s) l: bad")
	p.quiet()
	for _, p := range append(all, p) {
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all are gone", func() bool { return h.server.Connected() == 0 })
}

func strict() *model.Config {
	return &model.Config{
		Key:  model.Key{Kind: model.PeerAuthentication, Namespace: "default", Name: "default"},
		Spec: &securityv1beta1.PeerAuthentication{Mtls: &securityv1beta1.PeerAuthentication_MutualTLS{Mode: securityv1beta1.PeerAuthentication_MutualTLS_STRICT}},
	}
}

// guardOf describes a listener by what protects in it.
func guardOf(t *testing.T, res *anypb.Any) string {
	t.Helper()
	b, err := proto.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", generate.Guard(&xds.Resource{Any: b}))
}

// A security change reaches all proxies of an identity regardless of rejections by its other
// proxies: connected, reconnecting and new ones.
func TestRejectionWithholdsNoProtection(t *testing.T) {
	t.Parallel()
	for _, words := range []string{"listener(s) virtualInbound: bad config", "it is bad"} {
		for _, delta := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, delta %t", words, delta), func(t *testing.T) {
				t.Parallel()
				gen := generate.New(generate.Config{})
				h := startIdentities(t, Config{Generator: gen})
				before := snapshotOf(nil, nil)
				after := snapshotOf(before, nil, strict())
				h.server.Push(before, model.Change{All: true})
				connect := func() *peer {
					p := h.as(t, "pay", delta)
					delete(p.node.Metadata.Fields, "INTERCEPTION_MODE")
					p.describer = guardOf
					return p
				}
				line := func(mesh *snapshot.Mesh, changedSince *snapshot.Mesh) string {
					proxy := &model.Proxy{
						ID: "shop-1.default", Role: "sidecar", IPs: []string{"127.1.0.2"}, Namespace: "default", ServiceAccount: "pay",
						Domain: "default.svc.cluster.local", Interception: model.InterceptionRedirect, VHDS: delta,
					}
					words := []string{"lds"}
					for _, res := range gen.Generate(mesh, proxy, xds.TypeListener).Resources {
						if delta && changedSince != nil && generate.Guard(res) == generate.Guard(gen.Generate(changedSince, proxy, xds.TypeListener).Get(res.Name)) {
							continue
						}
						words = append(words, fmt.Sprintf("%x", generate.Guard(res)))
					}
					return strings.Join(words, " ")
				}
				if line(before, nil) == line(after, nil) {
					t.Fatal("STRICT changes nothing")
				}
				victim := connect().takeListener(line(before, nil))
				var liars []*peer
				for range 3 {
					liars = append(liars, connect().takeListener(line(before, nil)))
				}
				h.server.Push(after, model.Change{All: true})
				until(t, "the victim is given STRICT", func() bool {
					for _, p := range liars {
						if len(p.got) > 0 {
							p.want(line(after, before))
							p.nack(xds.TypeListener, "Error adding/updating "+words)
						}
					}
					return len(victim.got) > 0
				})
				victim.wantAck(line(after, before))
				victim.quiet() // if it was the canary, its acceptance counts from here on
				connect().takeListener(line(after, nil))
				if got := h.server.Rejected(); len(got) > 0 {
					t.Errorf("withheld: %+v", got)
				}
			})
		}
	}
}
