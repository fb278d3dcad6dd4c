// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// A gateway receives empty sets of all types, and can become ready; it receives the secrets that it
// requests, and their changes.
func TestSecrets(t *testing.T) {
	eachSecret(t, noConfig, func(t *testing.T, h *secretHarness, p *peer) {
		a, b, root := mint(t, "a"), mint(t, "b"), mint(t, "root")
		h.secrets.Set("default", "shop", a.pair())
		h.secrets.Set("default", "shop-cacert", map[string][]byte{"cacert": root.chain, "crl": root.crl(t)})
		h.secrets.Set("default", "bank", map[string][]byte{"cert": b.chain, "key": b.key, "cacert": root.chain})
		h.secrets.Set("bank", "shop", b.pair())

		p.subscribe(xds.TypeCluster)
		p.wantAck("cds")
		p.subscribe(xds.TypeListener)
		p.wantAck("lds")
		p.subscribe(xds.TypeSecret, "kubernetes://shop", "kubernetes://default/shop-cacert", "later")
		p.wantAck("sds default/shop-cacert:crl:root shop=a")
		p.quiet() // no word of what is not there

		h.secrets.Set("default", "shop", b.pair())
		p.wantAck("sds shop=b")
		h.secrets.Set("default", "shop", map[string][]byte{"tls.crt": a.chain, "tls.key": b.key})
		p.quiet() // the pair does not fit: what was good stays
		h.secrets.Set("default", "later", a.pair())
		p.wantAck("sds later=a")
		h.secrets.Delete("default", "later")
		p.quiet()
		h.secrets.Set("default", "later", a.pair())
		p.quiet() // it has that
		h.secrets.Set("default", "later", b.pair())
		p.wantAck("sds later=b")

		p.more(xds.TypeSecret, "kubernetes://bank-cacert") // the roots of bank
		p.wantAck("sds bank-cacert:root")
		h.secrets.Set("default", "bank", map[string][]byte{"cert": b.chain, "key": b.key, "cacert": a.chain})
		p.wantAck("sds bank-cacert:a")
		h.push()
		p.quiet()
	})
}

// Only streams that subscribed to a Secret process its changes.
func TestSecretOfOthers(t *testing.T) {
	eachSecret(t, noConfig, func(t *testing.T, h *secretHarness, p *peer) {
		h.secrets.Set("default", "shop", mint(t, "a").pair())
		p.subscribe(xds.TypeSecret, "kubernetes://shop")
		p.wantAck("sds shop=a")
		p.quiet()
		h.secrets.Set("default", "other", mint(t, "b").pair())
		h.secrets.Set("bank", "shop", mint(t, "b").pair())
		h.server.mu.Lock()
		defer h.server.mu.Unlock()
		if n := len(h.server.watching); n != 1 {
			t.Errorf("%d streams watch Secrets, want 1", n)
		}
	})
}

func TestSecretRejected(t *testing.T) {
	eachSecret(t, noConfig, func(t *testing.T, h *secretHarness, p *peer) {
		h.secrets.Set("default", "shop", mint(t, "a").pair())
		p.subscribe(xds.TypeSecret, "kubernetes://shop")
		p.want("sds shop=a")
		p.nack(xds.TypeSecret, "no such curve")
		p.quiet()
		h.secrets.Set("default", "shop", mint(t, "b").pair())
		p.wantAck("sds shop=b")
	})
}

func TestSecretUnsubscribe(t *testing.T) {
	eachSecret(t, noConfig, func(t *testing.T, h *secretHarness, p *peer) {
		h.secrets.Set("default", "shop", mint(t, "a").pair())
		p.subscribe(xds.TypeSecret, "kubernetes://shop")
		p.wantAck("sds shop=a")
		if p.delta {
			p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeSecret, ResourceNamesUnsubscribe: []string{"kubernetes://shop"}})
		} else {
			p.names[xds.TypeSecret] = nil
			p.ack(xds.TypeSecret)
		}
		p.quiet()
		h.secrets.Set("default", "shop", mint(t, "b").pair())
		p.quiet()
		p.subscribe(xds.TypeSecret, "kubernetes://shop")
		p.wantAck("sds shop=b")
	})
}

// A proxy that reconnects with current resources receives nothing.
func TestSecretResume(t *testing.T) {
	eachSecret(t, noConfig, func(t *testing.T, h *secretHarness, p *peer) {
		h.secrets.Set("default", "shop", mint(t, "a").pair())
		const name = "kubernetes://shop"
		p.subscribe(xds.TypeSecret, name)
		p.wantAck("sds shop=a")
		again := h.gateway(t, p.delta)
		if p.delta {
			h.server.mu.Lock()
			var res *xds.Resource
			for st := range h.server.watching {
				res = st.secrets.Set([]string{name}, st.mesh.Mesh).Get(name)
			}
			h.server.mu.Unlock()
			again.must(&discoveryv3.DeltaDiscoveryRequest{
				Node: again.node, TypeUrl: xds.TypeSecret, ResourceNamesSubscribe: []string{name},
				InitialResourceVersions: map[string]string{name: versionOf(res.Hash)},
			})
		} else {
			again.vers = p.vers
			again.subscribe(xds.TypeSecret, name)
		}
		again.quiet()
		h.secrets.Set("default", "shop", mint(t, "b").pair())
		again.wantAck("sds shop=b")
	})
}

// A caller without access to a secret does not receive it, and the reason is logged.
func TestSecretRefusals(t *testing.T) {
	t.Parallel()
	deny := func(context.Context, *authn.Caller) error { return errors.New("let a Role allow it") }
	for name, tc := range map[string]struct {
		plaintext bool
		cfg       secrets.Config
		resource  string
		label     string
		says      string
	}{
		"plaintext":         {plaintext: true, resource: "kubernetes://shop", label: "plaintext", says: "use the TLS port"},
		"other namespace":   {resource: "kubernetes://bank/shop", label: "namespace", says: "move the Secret there"},
		"gateway scheme":    {resource: "kubernetes-gateway://bank/shop", label: "namespace", says: "move the Secret there"},
		"unauthorised":      {cfg: secrets.Config{Authorize: deny}, resource: "kubernetes://shop", label: "unauthorized", says: "let a Role allow it"},
		"unauthorised, too": {cfg: secrets.Config{Authorize: deny}, resource: "kubernetes-gateway://default/shop", label: "unauthorized", says: "let a Role allow it"},
		"of the agent":      {resource: "default", label: "name", says: "from the agent"},
		"other scheme":      {resource: "file:///etc/passwd", label: "name", says: "the scheme is not one of"},
		"path":              {resource: "kubernetes://../bank/shop", label: "name", says: "write kubernetes://"},
		"missing":           {resource: "kubernetes://nobody", label: "missing", says: "there is no Secret default/nobody"},
		"no roots":          {resource: "kubernetes://shop-cacert", label: "broken", says: "contains neither cacert nor ca.crt"},
		"no pair":           {resource: "kubernetes://roots", label: "broken", says: "neither cert and key nor tls.crt and tls.key"},
	} {
		for kind, delta := range map[string]bool{"sotw": false, "delta": true} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				h := startSecrets(t, !tc.plaintext, tc.cfg)
				for _, ns := range []string{"default", "bank"} {
					h.secrets.Set(ns, "shop", mint(t, "a").pair())
				}
				h.secrets.Set("default", "roots", map[string][]byte{"cacert": mint(t, "root").chain})
				p := h.gateway(t, delta)
				p.subscribe(xds.TypeSecret, tc.resource)
				until(t, "it is logged", func() bool { return strings.Contains(h.logged.String(), tc.says) })
				p.quiet()
				h.push()
				p.quiet()
				if n := h.refused(tc.label); n != 1 {
					t.Errorf("refused %v times for the reason %s, want once", n, tc.label)
				}
			})
		}
	}
}

func TestSecretGranted(t *testing.T) {
	deny := func(context.Context, *authn.Caller) error { return errors.New("no") }
	eachSecret(t, func() secrets.Config {
		return secrets.Config{Authorize: deny, Granted: func(_ *snapshot.Mesh, c *authn.Caller, r credentials.Reference) bool {
			return r.Scheme == credentials.SchemeGateway && c.ID.ServiceAccount == "gateway" && r.Namespace == "bank" && r.Name == "shop"
		}}
	}, func(t *testing.T, h *secretHarness, p *peer) {
		h.secrets.Set("bank", "shop", mint(t, "a").pair())
		h.secrets.Set("default", "shop", mint(t, "a").pair())
		p.subscribe(xds.TypeSecret, "kubernetes-gateway://bank/shop", "kubernetes-gateway://default/shop", "kubernetes://bank/shop")
		p.wantAck("sds kubernetes-gateway://bank/shop=a")
		p.quiet()
	})
}

// Roots in ConfigMaps are for every proven caller, but only those that an object refers to. That also
// holds in the namespace of the caller.
func TestSecretConfigMap(t *testing.T) {
	maps, err := credentials.NewRootMaps(true, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	maps.SetSynced()
	for _, name := range []string{"roots", "other"} {
		for _, namespace := range []string{"bank", "default"} {
			maps.Set(namespace, name, map[string]string{"ca.crt": string(mint(t, name).chain)})
		}
	}
	deny := func(context.Context, *authn.Caller) error { return errors.New("no") }
	eachSecret(t, func() secrets.Config {
		return secrets.Config{ConfigMaps: maps, Authorize: deny, Granted: func(_ *snapshot.Mesh, _ *authn.Caller, r credentials.Reference) bool {
			return r.Scheme == credentials.SchemeConfigMap && r.Name == "roots"
		}}
	}, func(t *testing.T, h *secretHarness, p *peer) {
		h.secrets.Set("bank", "roots", mint(t, "a").pair())
		p.subscribe(xds.TypeSecret, "configmap://bank/roots-cacert", "configmap://default/roots-cacert", "configmap://default/other-cacert", "configmap://bank/other-cacert")
		p.wantAck("sds configmap://bank/roots-cacert:roots configmap://default/roots-cacert:roots")
		p.quiet()
		if n := h.refused("namespace"); n != 2 {
			t.Errorf("%g secrets were refused, want 2", n)
		}
	})
}

// The role and labels that a proxy claims grant it no Secret of a Gateway; only the service account
// of the Gateway does.
func TestSecretOfGateway(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{false, true} {
		for account, gets := range map[string]bool{"edge-istio": true, "nobody": false} {
			t.Run(fmt.Sprintf("%s, delta %t", account, delta), func(t *testing.T) {
				t.Parallel()
				stored, err := credentials.NewTable(slog.New(slog.DiscardHandler), nil)
				if err != nil {
					t.Fatal(err)
				}
				stored.SetSynced()
				stored.Set("default", "edge", mint(t, "own").pair())
				stored.Set("vault", "edge", mint(t, "granted").pair())
				h := startIdentities(t, Config{Secrets: secrets.Config{
					Source: stored, Authorize: func(context.Context, *authn.Caller) error { return errors.New("no") },
					Granted: func(_ *snapshot.Mesh, c *authn.Caller, r credentials.Reference) bool {
						return r.Name == "edge" && c.ID.Namespace == "default" && c.ID.ServiceAccount == "edge-istio"
					},
				}})
				h.push()
				p := h.as(t, account, delta)
				p.node = gatewayNode(t, map[string]any{"LABELS": map[string]any{"gateway.networking.k8s.io/gateway-name": "edge"}})
				delete(p.node.Metadata.Fields, "SERVICE_ACCOUNT")
				p.describer = describe
				p.subscribe(xds.TypeSecret, "kubernetes-gateway://default/edge", "kubernetes-gateway://vault/edge")
				if gets {
					p.wantAck("sds kubernetes-gateway://default/edge=own kubernetes-gateway://vault/edge=granted")
				} else {
					until(t, "the log says why", func() bool { return strings.Contains(h.logged.String(), "or by the annotation") })
				}
				p.quiet()
			})
		}
	}
}

// A grant that a snapshot adds or removes takes effect from then on; the proxy keeps the secrets
// that it has.
func TestSecretGrantComes(t *testing.T) {
	eachSecret(t, func() secrets.Config {
		return secrets.Config{Granted: func(mesh *snapshot.Mesh, _ *authn.Caller, _ credentials.Reference) bool { return mesh.Sequence == 2 }}
	}, func(t *testing.T, h *secretHarness, p *peer) {
		h.secrets.Set("bank", "shop", mint(t, "a").pair())
		p.subscribe(xds.TypeSecret, "kubernetes://bank/shop")
		p.quiet()
		h.push()
		p.wantAck("sds bank/shop=a")
		h.push()
		h.secrets.Set("bank", "shop", mint(t, "b").pair())
		p.quiet()
	})
}

// A pending access check does not block anything else; a refused proxy receives the secrets as soon
// as access is granted.
func TestSecretAuthorize(t *testing.T) {
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, answer := make(chan string), make(chan error)
			h := startSecrets(t, true, secrets.Config{Authorize: func(ctx context.Context, caller *authn.Caller) error {
				select {
				case asked <- caller.ID.ServiceAccount:
				case <-ctx.Done():
					return ctx.Err()
				}
				select {
				case err := <-answer:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			}})
			h.secrets.Set("default", "shop", mint(t, "a").pair())
			p := h.gateway(t, delta)
			p.subscribe(xds.TypeSecret, "kubernetes://shop")
			if who := <-asked; who != "gateway" {
				t.Errorf("asked for %q", who)
			}
			p.subscribe(xds.TypeCluster)
			p.wantAck("cds")
			h.secrets.Set("default", "shop", mint(t, "b").pair())
			p.quiet()
			answer <- errors.New("not yet")
			<-asked // automatically, after a while
			p.quiet()
			answer <- nil
			p.wantAck("sds shop=b")
			h.secrets.Set("default", "shop", mint(t, "c").pair())
			p.wantAck("sds shop=c") // the answer still counts
			if n := strings.Count(h.logged.String(), "not yet"); n != 1 {
				t.Errorf("the refusal is logged %d times", n)
			}
		})
	}
}

// A gateway waits for Secrets that are not read yet, and nothing is logged.
func TestSecretLoading(t *testing.T) {
	t.Parallel()
	table, err := credentials.NewTable(slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	h := startSecrets(t, true, secrets.Config{Source: table})
	p := h.gateway(t, true)
	p.subscribe(xds.TypeSecret, "kubernetes://shop")
	p.quiet()
	if text := h.logged.String(); strings.Contains(text, "is not sent to a proxy") {
		t.Errorf("it is logged:\n%s", text)
	}
	table.SetSynced()
	until(t, "it is logged", func() bool { return strings.Contains(h.logged.String(), "there is no Secret default/shop") })
}

// A proxy that requests many names does not flood the log.
func TestManyRefusals(t *testing.T) {
	t.Parallel()
	h := startSecrets(t, true, noConfig())
	p := h.gateway(t, true)
	names := make([]string, 1000)
	for i := range names {
		names[i] = "kubernetes://nobody-" + strings.Repeat("x", i%300) + "-" + versionOf(uint64(i))
	}
	p.subscribe(xds.TypeSecret, names...)
	until(t, "it is counted", func() bool {
		return h.refused("missing")+
			h.refused("name") == float64(len(names))
	})
	p.quiet()
	if n := strings.Count(h.logged.String(), "not sent to a proxy"); n != 9 {
		t.Errorf("%d lines in the log, want 8 and one for the rest", n)
	}
}

// No part of a secret's key is ever in the log, in errors or in metrics.
func TestNoKeyIsShown(t *testing.T) {
	eachSecret(t, noConfig, func(t *testing.T, h *secretHarness, p *peer) {
		a, b := mint(t, "a"), mint(t, "b")
		h.secrets.Set("default", "shop", a.pair())
		p.subscribe(xds.TypeSecret, "kubernetes://shop", "kubernetes://broken", "kubernetes://half", "kubernetes://bank/x")
		p.want("sds shop=a")
		p.nack(xds.TypeSecret, "failed to load the private key")
		h.secrets.Set("default", "broken", map[string][]byte{"tls.crt": a.chain, "tls.key": b.key})
		h.secrets.Set("default", "half", map[string][]byte{"tls.crt": b.key, "tls.key": a.chain, "ca.crt": b.key})
		h.secrets.Set("default", "shop", b.pair())
		p.wantAck("sds shop=b")
		p.quiet()
		h.secrets.Set("default", "shop", map[string][]byte{"cert": a.chain, "key": b.key[:len(b.key)/2]})
		p.quiet()
		families, err := h.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		shown := h.logged.String()
		for _, f := range families {
			shown += f.String()
		}
		for _, m := range []minted{a, b} {
			lines := strings.Split(strings.TrimSpace(string(m.key)), "\n")
			for _, line := range lines[1 : len(lines)-1] {
				if strings.Contains(shown, line[:min(len(line), 20)]) {
					t.Errorf("a line of a key is shown:\n%s", shown)
				}
			}
		}
		for _, word := range []string{"-----BEGIN", "-----END"} {
			if strings.Contains(shown, word) {
				t.Errorf("%q is shown:\n%s", word, shown)
			}
		}
	})
}
