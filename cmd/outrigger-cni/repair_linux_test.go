// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

// failedInit is the status of an init container that found no rules.
const failedInit = `, "initContainerStatuses": [{"name": "istio-validation", "lastState": {"terminated": {"exitCode": 126}}}]`

// withStatus returns the injected pod with a status.
func withStatus(status string) string {
	return strings.TrimSuffix(injected, "}") + ", " + strings.ReplaceAll(status, "%", "%%") + "}}"
}

// TestRepair starts pods without the plugin, and checks what each setting does with them.
func TestRepair(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ                 []string
		failed                  bool // the init container has failed
		rules, deleted, labeled bool
	}{
		"rules before the init container fails": {nil, false, true, false, false},
		"rules":                                 {nil, true, true, false, false},
		"delete":                                {[]string{"REPAIR_REPAIR_PODS=false", "REPAIR_DELETE_PODS=true"}, true, false, true, false},
		"label":                                 {[]string{"REPAIR_REPAIR_PODS=false", "REPAIR_LABEL_PODS=true"}, true, false, false, true},
		"label, but all is well":                {[]string{"REPAIR_REPAIR_PODS=false", "REPAIR_LABEL_PODS=true"}, false, false, false, false},
		"nothing":                               {[]string{"REPAIR_ENABLED=false"}, true, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			address, pod := podName(7)
			netns := l.namespace()
			l.write("net.d/10-pods.conflist", strings.ReplaceAll(podNetwork, "%s", "1.0.0"))
			if err := l.add(t.Context(), "apps", pod, netns); err != nil {
				t.Fatal(err)
			}
			_, other := podName(8)
			for file, path := range map[string]string{"a": l.namespace(), "b": netns} {
				if err := os.Symlink(path, l.path("netns/"+file)); err != nil {
					t.Fatal(err)
				}
			}
			status := `"status": {"phase": "Pending", "podIPs": [{"ip": "` + address.String() + `"}]`
			if c.failed {
				status += failedInit
			}
			l.set("apps", pod, withStatus(status))
			l.set("kube-system", pod, withStatus(status))
			l.set("apps", other, strings.Replace(withStatus(status), "istio-validation", "istio-init", 1))
			d := l.start(c.environ...)
			l.eventually("the pod is repaired", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				captured, err := capture.Captured(netns)
				return err == nil && captured == c.rules && c.deleted == slices.Contains(l.deleted, "apps/"+pod) && c.labeled == (l.patched["apps/"+pod] != "") &&
					(c.rules || c.deleted || c.labeled || strings.Contains(d.log.String(), "is installed"))
			})
			if repaired := strings.Count(d.log.String(), "a pod was started without rules"); c.rules && repaired == 0 {
				l.eventually("the log says so", func() bool { return strings.Contains(d.log.String(), "a pod was started without rules") })
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			if len(l.deleted) > 1 || len(l.patched) > 1 {
				t.Errorf("other pods were changed: deleted %v, labeled %v", l.deleted, l.patched)
			}
			if got := l.patched["apps/"+pod]; c.labeled && !strings.Contains(got, `"cni.istio.io/uninitialized":"true"`) {
				t.Errorf("label of %s: got %s", pod, got)
			}
		})
	}
}
