// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/status"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

func TestNotes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	for name, c := range map[string]struct {
		status xdsproxy.Status
		want   []string
	}{
		"begun": {xdsproxy.Status{}, []string{"control plane: not requested yet"}},
		"never": {xdsproxy.Status{Attempts: 3, Failure: "refused"}, []string{"control plane: not reached yet, 3 attempts: refused"}},
		"lost":  {xdsproxy.Status{Since: ago(61), Attempts: 2, Failure: "reset"}, []string{"control plane: lost 1m1s ago, 2 attempts: reset"}},
		"lost, with what it sent": {
			xdsproxy.Status{Since: ago(61), LastResponse: ago(3600), Attempts: 2, Failure: "reset"},
			[]string{"control plane: lost 1m1s ago, last response 1h0m0s ago, 2 attempts: reset"},
		},
		"new": {xdsproxy.Status{Since: ago(1), Connected: true}, []string{"control plane: connected, no response yet"}},
		"rejected": {
			xdsproxy.Status{Since: ago(9), Connected: true, LastResponse: ago(5), Types: []xdsproxy.TypeStatus{
				{TypeURL: "clusters", Accepted: ago(4)}, {TypeURL: "listeners", Accepted: ago(8), Rejected: ago(4), Reason: "no such filter"},
			}},
			[]string{"control plane: connected, last response 5s ago", "rejected 4s ago, the last good version stays in force: listeners: no such filter"},
		},
		"many lines": {
			xdsproxy.Status{Since: ago(2), Attempts: 1, Failure: "a\nb", Types: []xdsproxy.TypeStatus{{TypeURL: "clusters", Rejected: ago(4), Reason: "one\ncertificate: until 2099\n"}}},
			[]string{`control plane: lost 2s ago, 1 attempts: a\nb`, `rejected 4s ago, no earlier version is known: clusters: one\ncertificate: until 2099`},
		},
	} {
		if diff := cmp.Diff(c.want, notes(c.status, nil, now)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestHookSources checks that the addresses of the kubelet come from the environment and the
// annotations of the pod.
func TestHookSources(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ     []string
		annotations map[string]string
		want        status.HookSources
	}{
		"nothing":    {nil, nil, status.HookSources{}},
		"node":       {[]string{"HOST_IP=192.0.2.7"}, nil, status.HookSources{HostIP: netip.MustParseAddr("192.0.2.7")}},
		"IPv6":       {[]string{"HOST_IP=[2001:db8::7]"}, nil, status.HookSources{HostIP: netip.MustParseAddr("2001:db8::7")}},
		"no address": {[]string{"HOST_IP=node-7"}, nil, status.HookSources{}},
		"list":       {[]string{"OUTRIGGER_HOOK_SOURCES=100.64.0.0/16"}, nil, status.HookSources{More: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}}},
		"any":        {[]string{"OUTRIGGER_HOOK_SOURCES=any"}, nil, status.HookSources{Anybody: true}},
		"wrong":      {[]string{"OUTRIGGER_HOOK_SOURCES=kubelet"}, nil, status.HookSources{}},
		"OVN":        {nil, map[string]string{"k8s.ovn.org/pod-networks": "{}"}, status.HookSources{AfterGateway: true}},
	} {
		env, _ := environ.Read(c.environ)
		got := hookSources(&settings{env: env, metadata: &node.Metadata{Annotations: c.annotations}})
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
