// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// in runs a test with a separate store in a synctest bubble.
func in(t *testing.T, test func(m *mesh)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newMesh(t, newStore())) })
}

// after advances the time and waits until everything due by then is done.
func after(d time.Duration) {
	synctest.Wait()
	time.Sleep(d)
	synctest.Wait()
}

// TestEntry checks that an entry has the metadata and the template of the group. The proxy
// determines its address but no labels, because labels select services.
func TestEntry(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		p := machine("10.0.0.7")
		p.Proxy.Labels = map[string]string{"app": "pay", "service": "pay", "version": "v2", "from": "proxy", localityLabel: "r.z.label"}
		p.Proxy.Network, p.Locality, p.Probed = "net-2", "r/z/proxy", true
		m.replica("one").connect(p)
		after(0)
		c := m.entry("web-10.0.0.7-net-2")
		if c == nil {
			t.Fatalf("the entry does not exist; the entries are %v", m.store.List(model.WorkloadEntry, ""))
		}
		labels := map[string]string{"app": "web", "tier": "group", "from": "template"}
		want := &networkingv1alpha3.WorkloadEntry{
			Address: "10.0.0.7", ServiceAccount: "web", Ports: map[string]uint32{"http": 8080}, Weight: 7, Network: "net-1", Locality: "r/z/template", Labels: labels,
		}
		if got := entrySpec(c); !proto.Equal(got, want) {
			t.Errorf("the spec is\n%v\nwant\n%v", got, want)
		}
		if !maps.Equal(c.Labels, labels) || c.APIVersion != "networking.istio.io/v1" {
			t.Errorf("the object is %+v, want the labels of the group in networking.istio.io/v1", c)
		}
		for name, value := range map[string]string{groupAnnotation: "web", controllerAnnotation: "one", health.ChecksAnnotation: "true", "owner": "shop"} {
			if c.Annotations[name] != value {
				t.Errorf("annotation %s is %q, want %q", name, c.Annotations[name], value)
			}
		}
		m.wantHeld("connected", "web-10.0.0.7-net-2", "one")
	})
}

// TestEntryFromTemplate checks that the network, locality and health checks of the group take
// precedence over those of the proxy.
func TestEntryFromTemplate(t *testing.T) {
	g := group()
	spec := g.Spec.(*networkingv1alpha3.WorkloadGroup)
	spec.Template.ServiceAccount = ""
	spec.Probe = &networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_TcpSocket{TcpSocket: &networkingv1alpha3.TCPHealthCheckConfig{Port: 1}}}
	p := machine("fd00::7")
	p.Proxy.ServiceAccount = "default"
	c := entryOf(entryKey("x"), p, g)
	got := entrySpec(c)
	if got.GetNetwork() != "net-1" || got.GetLocality() != "r/z/template" || got.GetServiceAccount() != "default" || c.Annotations[health.ChecksAnnotation] != "true" {
		t.Errorf("the template does not take precedence: the entry is %v with annotations %v", got, c.Annotations)
	}
	spec.Template.Network, spec.Template.Locality = "", ""
	p.Proxy.Network, p.Locality = "net-2", "r/z/proxy"
	if got := entrySpec(entryOf(entryKey("x"), p, g)); got.GetNetwork() != "net-2" || got.GetLocality() != "r/z/proxy" {
		t.Errorf("the network and locality of the proxy are not used: %v", got)
	}
	spec.Metadata.Annotations[health.ChecksAnnotation] = "false"
	if c := entryOf(entryKey("x"), p, g); c.Annotations[health.ChecksAnnotation] != "false" {
		t.Errorf("the health check setting of the group is not used: %v", c.Annotations)
	}
	if contentOf(c) == contentOf(entryOf(entryKey("x"), p, group())) {
		t.Error("different contents have the same hash")
	}
}

// TestGrace checks that an entry is removed after its proxy has been disconnected for the grace
// period, and kept if the proxy reconnects earlier.
func TestGrace(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		one := m.replica("one")
		leave := one.connect(machine("10.0.0.1"))
		after(time.Hour)
		m.wantHeld("connected", "web-10.0.0.1", "one")
		uid := m.entry("web-10.0.0.1").UID
		leave()
		after(grace - time.Millisecond)
		m.wantHeld("left", "web-10.0.0.1", "")
		leave = one.connect(machine("10.0.0.1"))
		after(time.Hour)
		m.wantHeld("returned", "web-10.0.0.1", "one")
		if m.entry("web-10.0.0.1").UID != uid {
			t.Error("the entry was replaced")
		}
		leave()
		after(grace - time.Millisecond)
		m.wantEntries("before the end of the grace period", "web-10.0.0.1")
		after(2 * time.Millisecond)
		m.wantEntries("after the grace period")
		one.connect(machine("10.0.0.1"))
		after(0)
		m.wantHeld("again", "web-10.0.0.1", "one")
		if n := len(one.work); n != 1 {
			t.Errorf("%d entries are tracked, want none", n)
		}
	})
}

// TestTakeOver checks that a proxy that moves to another replica keeps its entry, however late the
// first replica detects the end of the stream.
func TestTakeOver(t *testing.T) {
	for _, late := range []time.Duration{0, grace / 2, 3 * time.Hour} {
		t.Run(late.String(), func(t *testing.T) {
			in(t, func(m *mesh) {
				m.create(group())
				one, two := m.replica("one"), m.replica("two")
				leave := one.connect(machine("10.0.0.1"))
				after(time.Second)
				if late == 0 {
					leave()
				}
				leaveTwo := two.connect(machine("10.0.0.1"))
				after(late)
				if late > 0 {
					m.wantHeld("owned by two", "web-10.0.0.1", "two")
					leave()
				}
				after(time.Hour)
				m.wantHeld("connected only to two", "web-10.0.0.1", "two")
				leaveTwo()
				after(grace - time.Millisecond)
				m.wantHeld("left", "web-10.0.0.1", "")
				after(2 * time.Millisecond)
				m.wantEntries("gone")
			})
		})
	}
}

// TestOlderStreamStays checks that either of two streams of a proxy keeps the entry.
func TestOlderStreamStays(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		one, two := m.replica("one"), m.replica("two")
		one.connect(machine("10.0.0.1"))
		after(time.Second)
		leave := two.connect(machine("10.0.0.1"))
		second := two.connect(machine("10.0.0.1"))
		after(time.Second)
		leave()
		after(time.Minute)
		m.wantHeld("two streams", "web-10.0.0.1", "two")
		second()
		after(0)
		m.wantHeld("after the newer stream has ended", "web-10.0.0.1", "one")
		after(time.Hour)
		m.wantHeld("after the grace period", "web-10.0.0.1", "one")
	})
}

// TestCrash checks that the entry of a crashed replica is removed if no replica has its proxy, and
// kept otherwise. A replica that restarts recognizes its own entries sooner.
func TestCrash(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		one, two := m.replica("one"), m.replica("two")
		for i := range 3 {
			one.connect(machine(fmt.Sprintf("10.0.0.%d", i+1)))
		}
		after(time.Second)
		one.crash()
		two.connect(machine("10.0.0.2"))
		after(40 * time.Minute)
		m.wantEntries("right after the crash", "web-10.0.0.1", "web-10.0.0.2", "web-10.0.0.3")
		m.wantHeld("owned by two", "web-10.0.0.2", "two")

		one = m.replica("one")
		one.connect(machine("10.0.0.3"))
		after(returning - time.Second)
		m.wantEntries("while agents may reconnect", "web-10.0.0.1", "web-10.0.0.2", "web-10.0.0.3")
		after(time.Minute)
		m.wantEntries("replica restarted, one proxy did not reconnect", "web-10.0.0.2", "web-10.0.0.3")

		one.crash()
		after(orphaned - 3*time.Minute)
		m.wantEntries("before the crashed replica expires", "web-10.0.0.2", "web-10.0.0.3")
		after(5 * time.Minute)
		m.wantEntries("after the crashed replica has expired", "web-10.0.0.2")
		m.wantHeld("at the end", "web-10.0.0.2", "two")
	})
}

// TestReplicasAreForgotten checks that the state of a replica exists only while an entry names it,
// so that names of removed replicas do not accumulate.
func TestReplicasAreForgotten(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		watcher := m.replica("watcher")
		for i := range 20 {
			r := m.replica(fmt.Sprint("pod-", i))
			leave := r.connect(machine(fmt.Sprintf("10.0.0.%d", i+1)))
			after(time.Second)
			leave()
			after(2 * grace)
			r.crash()
		}
		after(time.Hour)
		m.wantEntries("after all have disconnected")
		watcher.mu.Lock()
		defer watcher.mu.Unlock()
		if n := len(watcher.replicas); n > 0 {
			t.Errorf("%d replicas without an entry are remembered, want none", n)
		}
	})
}

// TestCrashAfterMark checks that a mark that a replica wrote before it crashed is honored, but not
// before proxies had time to reconnect.
func TestCrashAfterMark(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		one := m.replica("one")
		for _, address := range []string{"10.0.0.1", "10.0.0.2"} {
			leave := one.connect(machine(address))
			after(time.Second)
			leave()
			after(time.Second)
		}
		m.wantHeld("left", "web-10.0.0.1", "")
		one.crash()
		time.Sleep(24 * time.Hour)
		one = m.replica("one")
		after(returning - time.Second)
		one.connect(machine("10.0.0.2"))
		after(time.Hour)
		m.wantEntries("later", "web-10.0.0.2")
	})
}

// TestSameName checks that replicas with the same name do not remove each other's entries.
func TestSameName(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		one, two := m.replica("same"), m.replica("same")
		leave := one.connect(machine("10.0.0.1"))
		two.connect(machine("10.0.0.2"))
		for range 100 {
			after(time.Minute)
			m.wantEntries("both connected", "web-10.0.0.1", "web-10.0.0.2")
		}
		leave()
		after(time.Hour)
		m.wantEntries("after one has disconnected", "web-10.0.0.2")
	})
}

// TestClocks checks that times from other clocks have no effect.
func TestClocks(t *testing.T) {
	for _, at := range []string{"1970-01-01T00:00:00Z", "2200-01-01T00:00:00.000000001Z", "yesterday"} {
		t.Run(at, func(t *testing.T) {
			in(t, func(m *mesh) {
				m.create(group())
				one := m.replica("one")
				leave := one.connect(machine("10.0.0.1"))
				after(2 * returning)
				m.patch(entryKey("web-10.0.0.1"), func(c *model.Config) {
					c.Annotations[controllerAnnotation], c.Annotations[connectedAnnotation] = "stranger", at
				})
				after(time.Minute)
				m.patch(entryKey("web-10.0.0.1"), func(c *model.Config) {
					delete(c.Annotations, connectedAnnotation)
					c.Annotations[disconnectedAnnotation] = at
				})
				after(0)
				m.wantHeld("after reconnecting", "web-10.0.0.1", "one")
				leave()
				after(grace / 2)
				m.patch(entryKey("web-10.0.0.1"), func(c *model.Config) { c.Annotations[disconnectedAnnotation] = at })
				after(grace)
				m.wantEntries("marked by another writer", "web-10.0.0.1")
				after(grace + slack + time.Second)
				m.wantEntries("later")
			})
		})
	}
}

// TestNoGroup checks that a proxy whose group does not exist is warned, and registered when the
// group is created.
func TestNoGroup(t *testing.T) {
	in(t, func(m *mesh) {
		one := m.replica("one")
		if err := one.Connect(machine("10.0.0.1")); !errors.Is(err, ErrNoGroup) {
			t.Fatalf("Connect() = %v, want ErrNoGroup", err)
		}
		p := machine("10.0.0.1")
		one.Gone(p.Proxy) // discovery reports the end of every stream
		p.Proxy.AutoRegisterGroup = ""
		if err := one.Connect(p); err != nil {
			t.Fatal(err)
		}
		after(0)
		m.wantEntries("nobody")
		m.create(group())
		one.connect(machine("10.0.0.1"))
		after(0)
		m.wantEntries("after the group was created", "web-10.0.0.1")
	})
}

// TestAddress checks that the registered address is one at which others reach the workload.
func TestAddress(t *testing.T) {
	for _, test := range []struct {
		address, source string
		strict, want    bool
	}{
		{"10.0.0.1", "10.0.0.1", true, true},
		{"10.0.0.1", "192.0.2.1", false, true}, // through a gateway
		{"10.0.0.1", "192.0.2.1", true, false},
		{"127.0.0.2", "127.0.0.1", true, true}, // all on one machine
		{"127.0.0.2", "10.0.0.1", false, false},
		{"0.0.0.0", "10.0.0.1", false, false},
		{"224.0.0.1", "10.0.0.1", false, false},
		{"fe80::1%eth0", "fe80::1", false, false},
		{"::ffff:10.0.0.1", "10.0.0.1", true, true},
		{"fd00::1", "fd00::1", true, true},
		{"nonsense", "10.0.0.1", false, false},
	} {
		p := machine("10.0.0.1")
		p.Proxy.IPs, p.Source = []string{test.address}, netip.MustParseAddr(test.source)
		if why := addressFault(p, test.strict); (why == "") != test.want {
			t.Errorf("addressFault for %+v = %q", test, why)
		}
	}
}
