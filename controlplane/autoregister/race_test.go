// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestReconnectDuringRemoval checks that a machine that reconnects to another replica during the
// removal of its entry keeps it.
func TestReconnectDuringRemoval(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		one := m.replica("one")
		leave := one.connect(machine("10.0.0.1"))
		after(0)
		uid := m.entry("web-10.0.0.1").UID
		m.faulty.before = func() {
			m.patch(entryKey("web-10.0.0.1"), func(c *model.Config) {
				delete(c.Annotations, disconnectedAnnotation)
				c.Annotations[controllerAnnotation], c.Annotations[connectedAnnotation] = "two", stamp("")
			})
		}
		leave()
		after(2 * grace)
		m.wantHeld("after reconnecting", "web-10.0.0.1", "two")
		if m.entry("web-10.0.0.1").UID != uid {
			t.Error("the entry was removed and created again")
		}
		if n := testutil.ToFloat64(one.metrics.deletes); n != 0 {
			t.Errorf("%v entries were removed, want none", n)
		}
	})
}

// TestLiveReplicaIsCheckedOnce checks that a live replica proves that it is alive with one entry,
// however many it owns.
func TestLiveReplicaIsCheckedOnce(t *testing.T) {
	in(t, func(m *mesh) {
		m.create(group())
		one, two := m.replica("one"), m.replica("two")
		var names []string
		for i := range 30 {
			one.connect(machine(fmt.Sprintf("10.0.0.%d", i+1)))
			names = append(names, fmt.Sprintf("web-10.0.0.%d", i+1))
		}
		after(10 * orphaned)
		m.wantEntries("all are connected", names...)
		if n := testutil.ToFloat64(two.metrics.unregistered); n < 8 || n > 10 {
			t.Errorf("%v checks in ten periods, want 8 to 10", n)
		}
		if n := testutil.ToFloat64(one.metrics.errors) + testutil.ToFloat64(two.metrics.errors); n != 0 {
			t.Errorf("%v writes failed, want none", n)
		}
		one.crash()
		after(2 * orphaned)
		m.wantEntries("after the crash")
	})
}
