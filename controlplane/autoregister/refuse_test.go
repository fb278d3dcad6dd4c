// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// entry returns a WorkloadEntry as a user would write it.
func entry(namespace, name, account, address string) *model.Config {
	return &model.Config{
		Key:  model.Key{Kind: model.WorkloadEntry, Namespace: namespace, Name: name},
		Spec: &networkingv1alpha3.WorkloadEntry{Address: address, ServiceAccount: account},
	}
}

// logged collects the log of a replica.
func logged(b *bytes.Buffer) func(*Config) {
	return func(cfg *Config) { cfg.Logger = slog.New(slog.NewTextHandler(b, nil)) }
}

// TestRefuses checks that a proxy that may not join its group is served but not registered as an
// endpoint. The log must contain the reason.
func TestRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		before *model.Config // another entry; may be nil
		alter  func(*model.ConnectedProxy)
		kind   string
		says   string // empty means that it is registered
	}{
		"unverified proxy":                    {nil, func(p *model.ConnectedProxy) { p.Verified = false }, refusedProxy, "TLS port"},
		"another service account":             {nil, func(p *model.ConnectedProxy) { p.Proxy.ServiceAccount = "db" }, refusedIdentity, "its service account is"},
		"no address":                          {nil, func(p *model.ConnectedProxy) { p.Proxy.IPs = []string{"0.0.0.0"} }, refusedProxy, "cannot reach it"},
		"invalid labels":                      {nil, func(p *model.ConnectedProxy) { p.Proxy.Labels = map[string]string{"a b": "c"} }, "", ""},
		"address of another account":          {entry("shop", "db", "db", "10.0.0.1"), func(*model.ConnectedProxy) {}, refusedAddress, "WorkloadEntry/shop/db"},
		"address in another notation":         {entry("shop", "db", "db", "::ffff:10.0.0.1"), func(*model.ConnectedProxy) {}, refusedAddress, "WorkloadEntry/shop/db"},
		"address in another namespace":        {entry("bank", "vault", "", "10.0.0.1"), func(*model.ConnectedProxy) {}, refusedAddress, "WorkloadEntry/bank/vault"},
		"name of a manual entry":              {entry("shop", "web-10.0.0.1", "web", "10.0.0.9"), func(*model.ConnectedProxy) {}, refusedName, "was not created by registration"},
		"address of the same account":         {entry("shop", "by-hand", "web", "10.0.0.1"), func(*model.ConnectedProxy) {}, "", ""},
		"address of an entry without account": {entry("shop", "by-hand", "", "10.0.0.1"), func(*model.ConnectedProxy) {}, "", ""},
		"different address":                   {entry("bank", "vault", "", "10.0.0.2"), func(*model.ConnectedProxy) {}, "", ""},
		"host name":                           {entry("bank", "vault", "", "vm.example.com"), func(*model.ConnectedProxy) {}, "", ""},
		"invalid entry name":                  {nil, func(p *model.ConnectedProxy) { p.Proxy.Network = "Net_1" }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			in(t, func(m *mesh) {
				m.create(group())
				if test.before != nil {
					m.create(test.before)
				}
				one := m.replica("one", logged(&log))
				p := machine("10.0.0.1")
				test.alter(&p)
				leave := one.connect(p)
				after(time.Hour)
				made := 0
				for _, c := range m.store.List(model.WorkloadEntry, "") {
					if isRegistered(c) {
						made++
					}
				}
				if made != 0 != (test.says == "") {
					t.Errorf("%d entries were registered", made)
				}
				if test.says != "" {
					if n := testutil.ToFloat64(one.metrics.refused.WithLabelValues(test.kind)); n != 1 {
						t.Errorf("%v refusals were counted, want 1", n)
					}
				}
				leave()
				after(time.Minute)
				if test.before != nil && m.store.Get(test.before.Key) == nil {
					t.Error("the existing entry was removed")
				}
				if n := len(one.work) + len(one.identities); n != 0 {
					t.Errorf("%d work items and identities remain, want none", n)
				}
				one.crash()
			})
			if lines := strings.Count(log.String(), "not registered"); test.says != "" && (lines != 1 || !strings.Contains(log.String(), test.says)) {
				t.Errorf("the log has %d lines, want one with %q:\n%s", lines, test.says, &log)
			}
		})
	}
}

// TestAddressIsReusable checks that an address can be registered again once its entry is removed.
func TestAddressIsReusable(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		m.create(entry("bank", "vault", "vault", "10.0.0.1"))
		m.create(entry("shop", "web-10.0.0.2", "db", "10.0.0.2"))
		one := m.replica("one")
		one.connect(machine("10.0.0.1"))
		one.connect(machine("10.0.0.2"))
		after(time.Minute)
		m.wantEntries("before", "vault", "web-10.0.0.2")
		m.delete(model.Key{Kind: model.WorkloadEntry, Namespace: "bank", Name: "vault"})
		m.delete(entryKey("web-10.0.0.2"))
		after(0)
		m.wantHeld("after", "web-10.0.0.1", "one")
		m.wantHeld("after", "web-10.0.0.2", "one")
	})
}

// TestAddressRace checks that one of two identities that register the same address concurrently
// gets it, and that the other gets it once the first one has disconnected.
func TestAddressRace(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		db := group()
		db.Key, db.Spec.(*networkingv1alpha3.WorkloadGroup).Template.ServiceAccount = groupKey("db"), "db"
		m.create(db)
		one, two := m.replica("one"), m.replica("two")
		p := machine("10.0.0.1")
		p.Proxy.ServiceAccount, p.Proxy.AutoRegisterGroup = "db", "db"
		leave := two.connect(p)
		one.connect(machine("10.0.0.1"))
		after(time.Minute)
		list := m.store.List(model.WorkloadEntry, "")
		if len(list) != 1 {
			t.Fatalf("%d entries were registered, want 1", len(list))
		}
		if list[0].Name == "db-10.0.0.1" {
			leave()
			after(time.Minute)
		}
		m.wantHeld("after the other one has disconnected", "web-10.0.0.1", "one")
	})
}

// TestGroupChanges checks that a change of the group changes the entries of connected proxies. A
// user's change to the spec of an entry lasts until then; a user's labels always remain.
func TestGroupChanges(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		one, two := m.replica("one"), m.replica("two")
		one.connect(machine("10.0.0.1"))
		two.connect(machine("10.0.0.2"))
		after(0)
		m.patch(entryKey("web-10.0.0.1"), func(c *model.Config) {
			entrySpec(c).Weight = 1
			c.Labels["mine"] = "yes"
		})
		one.connect(machine("10.0.0.1")) // again
		after(time.Hour)
		if c := m.entry("web-10.0.0.1"); entrySpec(c).GetWeight() != 1 || c.Labels["mine"] != "yes" {
			t.Errorf("the user's change was overwritten: %v %v", c.Labels, c.Spec)
		}
		m.patch(groupKey("web"), func(c *model.Config) {
			g := groupSpec(c)
			g.Template.Ports["http"] = 9090
			delete(g.Metadata.Labels, "tier")
			delete(g.Template.Labels, "from")
		})
		after(0)
		for i, held := range []string{"one", "two"} {
			name := fmt.Sprintf("web-10.0.0.%d", i+1)
			m.wantHeld("changed", name, held)
			c := m.entry(name)
			if spec := entrySpec(c); spec.GetPorts()["http"] != 9090 || spec.GetWeight() != 7 || c.Labels["tier"] != "template" || c.Labels["from"] != "" || spec.GetLabels()["from"] != "" {
				t.Errorf("%s was not updated: %v %v", name, c.Labels, spec)
			}
		}
		if c := m.entry("web-10.0.0.1"); c.Labels["mine"] != "yes" {
			t.Errorf("the user's label was removed: %v", c.Labels)
		}

		m.patch(groupKey("web"), func(c *model.Config) { groupSpec(c).Template.ServiceAccount = "other" })
		after(0)
		m.wantEntries("with another service account")
		m.patch(groupKey("web"), func(c *model.Config) { groupSpec(c).Template.ServiceAccount = "web" })
		after(0)
		m.wantEntries("with the original service account", "web-10.0.0.1", "web-10.0.0.2")
		m.delete(groupKey("web"))
		after(0)
		m.wantEntries("after the group was deleted")
		m.create(group())
		after(0)
		m.wantEntries("after the group was created again", "web-10.0.0.1", "web-10.0.0.2")
		m.delete(entryKey("web-10.0.0.1"))
		after(0)
		m.wantHeld("after the entry of a connected machine was deleted", "web-10.0.0.1", "one")
	})
}

// TestFlood checks that many new machines of one identity are registered gradually, and do not
// delay those of others.
func TestFlood(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		db := group()
		db.Key, db.Spec.(*networkingv1alpha3.WorkloadGroup).Template.ServiceAccount = groupKey("db"), "db"
		m.create(db)
		one := m.replica("one")
		const many = newAtOnce + 10*newPerSecond
		for i := range many {
			one.connect(machine(fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)))
		}
		p := machine("10.1.0.1")
		p.Proxy.ServiceAccount, p.Proxy.AutoRegisterGroup = "db", "db"
		one.connect(p)
		after(2 * time.Second)
		n := len(m.store.List(model.WorkloadEntry, "shop"))
		if n < newAtOnce || n > newAtOnce+3*newPerSecond+1 {
			t.Errorf("%d entries after 2 s, want %d to %d", n, newAtOnce, newAtOnce+3*newPerSecond+1)
		}
		m.wantHeld("another identity", "db-10.1.0.1", "one")
		after(time.Minute)
		if n := len(m.store.List(model.WorkloadEntry, "shop")); n != many+1 {
			t.Errorf("%d entries, want %d", n, many+1)
		}
		one.mu.Lock()
		one.identities[identity{"shop", "web"}].entries = maxEntries
		one.mu.Unlock()
		one.connect(machine("10.2.0.1"))
		after(time.Minute)
		if m.entry("web-10.2.0.1") != nil {
			t.Error("an entry was registered beyond the limit of its identity")
		}
	})
}

// TestFailingStore checks that a store that rejects writes for a while causes a delay and one log
// line.
func TestFailingStore(t *testing.T) {
	var log bytes.Buffer
	in(t, func(m *mesh) {
		m.create(group())
		one := m.replica("one", logged(&log))
		leave := one.connect(machine("10.0.0.1"))
		after(0)
		m.faulty.set(errors.New("the disk is full"), false)
		leave()
		one.connect(machine("10.0.0.2"))
		after(time.Hour)
		m.wantHeld("while writes fail", "web-10.0.0.1", "one")
		m.faulty.set(nil, false)
		after(2 * longPause)
		m.wantHeld("once writes succeed", "web-10.0.0.2", "one")
		m.wantEntries("once writes succeed", "web-10.0.0.2")
		one.crash()
	})
	if n := strings.Count(log.String(), "disk is full"); n != 2 {
		t.Errorf("%d lines, want one for each entry:\n%s", n, &log)
	}
}

// TestShutdownKeepsEntry checks that a stream that ends because of a shutdown does not mark its
// entry as disconnected.
func TestShutdownKeepsEntry(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		one := m.replica("one")
		leave := one.connect(machine("10.0.0.1"))
		after(0)
		one.crash()
		leave() // the replica's streams end with the replica
		synctest.Wait()
		m.wantHeld("without a mark", "web-10.0.0.1", "one")
	})
}
