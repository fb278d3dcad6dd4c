// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServicesPast checks that the history of a Service has the number of its endpoints, and that a
// request of the past is sent to the endpoints of then, also after the Service has been deleted.
func TestServicesPast(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	ctx := testContext(t)
	w := writer{t, c.Admin()}
	w.must(c.CreateNamespace(ctx, "shop"))
	plane := newControl(t, install(t, c, "rbac.yaml"), nil)
	plane.args = append(plane.args, "--grpcAddr", plane.host+":15010")
	w.must(plane.Start(ctx))
	outrigger := program(t, "outrigger")
	ask := func(args ...string) string {
		t.Helper()
		out, _ := exec.CommandContext(ctx, outrigger, append(args, "--timeout", "4m", "--control", plane.host+":8080")...).CombinedOutput() // a refused request exits with 1
		return string(out)
	}
	labels := map[string]string{"app": "catalog"}
	one, two := w.pod("shop", "catalog-1", "10.1.0.1", labels), w.pod("shop", "catalog-2", "10.1.0.2", labels)
	addresses := func() (all []string) {
		for _, line := range strings.Split(ask("history", "svc/catalog.shop"), "\n") {
			if f := strings.Fields(line); len(f) == 5 && f[1] == "service/catalog.shop" {
				all = append(all, f[4])
			}
		}
		return all
	}
	recorded := func(want ...string) func() bool {
		return func() bool { return slices.Equal(addresses(), want) }
	}
	moment := func() string { return time.Now().UTC().Format(time.RFC3339Nano) }

	w.slice("shop", "catalog-x", "catalog", one, two)
	w.service("shop", "catalog", nil)
	v := watchAs(t, plane.host+":15010", "shop", "REDIRECT")
	defer v.explain(t)
	eventually(t, ctx, "both pods", v.has(catalog, "10.1.0.1:8080", "10.1.0.2:8080"))
	eventually(t, ctx, "two addresses are recorded", recorded("2"))
	both := moment()
	w.slice("shop", "catalog-x", "catalog")
	eventually(t, ctx, "no address is recorded", recorded("2", "0"))
	none := moment()
	w.slice("shop", "catalog-x", "catalog", two)
	eventually(t, ctx, "an address is recorded", recorded("2", "0", "1"))

	healthy := func(at string) int {
		t.Helper()
		var d struct {
			Client struct {
				Destinations []struct{ Healthy int }
			}
		}
		out := ask("explain", "request", "--from", "client.shop", "--to", "catalog.shop", "--at", at, "-o", "json")
		if err := json.Unmarshal([]byte(out), &d); err != nil || len(d.Client.Destinations) != 1 {
			t.Fatalf("explain request at %s: %v\n%s", at, err, out)
		}
		return d.Client.Destinations[0].Healthy
	}
	check := func(when string) {
		t.Helper()
		for at, want := range map[string]int{both: 2, none: 0} {
			if got := healthy(at); got != want {
				t.Errorf("%s: the service had %d endpoints, want %d", when, got, want)
			}
		}
	}
	check("at first")
	if now := healthy("now"); now != 1 {
		t.Errorf("the service has %d endpoints, want 1", now)
	}
	w.must(c.Admin().CoreV1().Services("shop").Delete(ctx, "catalog", *metav1.NewDeleteOptions(0)))
	eventually(t, ctx, "the deletion is recorded", recorded("2", "0", "1", "-"))
	check("after the deletion")
	out := ask("explain", "svc/catalog.shop", "--at", both)
	for _, want := range []string{"Requests were received at 2 addresses.", "; updated at ", "outbound|80||catalog.shop", "connected now, 1 would have received it:\n  client.shop\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("explain of the Service that was deleted lacks %q:\n%s", want, out)
		}
	}
}
