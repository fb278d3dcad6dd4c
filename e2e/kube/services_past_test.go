// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServicesPast checks that the history of a Service has the number of its endpoints, and that a
// request of the past is sent to the endpoints of then, also after the Service has been deleted. Objects of
// the cluster are rolled back.
func TestServicesPast(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	ctx := testContext(t)
	w := writer{t, c.Admin()}
	w.must(errors.Join(c.CreateNamespace(ctx, "shop"), c.ApplyCRDs(ctx, definitionsOf(t, "istio.io/api", "kubernetes"))))
	plane := newControl(t, install(t, c, "rbac.yaml", "rbac-config.yaml"), nil)
	plane.args = append(plane.args, "--grpcAddr", plane.host+":15010", "--configDir", "")
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
	rollsBack(t, c, plane.host+":8080")
}

// rollsBack restores an object of the cluster, and refuses to restore what is another object by the name.
func rollsBack(t *testing.T, c *Cluster, control string) {
	t.Helper()
	ctx := testContext(t)
	admin, err := c.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	run := func(input string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, program(t, "outrigger"), args...)
		cmd.Env, cmd.Stdin = append(os.Environ(), "KUBECONFIG="+admin, "TMPDIR="+t.TempDir()), strings.NewReader(input)
		out, _ := cmd.CombinedOutput() // a refusal exits with 1
		return string(out)
	}
	entry := func(address string) string {
		return "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: one, namespace: shop}\nspec: {address: " + address + "}\n"
	}
	recorded := func(n int) func() bool {
		return func() bool {
			return strings.Count(run("", "history", "we/one.shop", "--control", control), "we/one.shop") == n
		}
	}
	for i, address := range []string{"10.0.0.1", "10.0.0.2"} {
		if out := run(entry(address), "apply", "-f", "-"); !strings.Contains(out, "workloadentry/one in shop applied\n") {
			t.Fatalf("apply: %s", out)
		}
		eventually(t, ctx, "the version is recorded", recorded(i+1))
	}
	rollback := []string{"rollback", "we/one", "-n", "shop", "--yes", "--control", control}
	const restored = "workloadentry/one in shop restored to revision "
	if out := run("", rollback...); !strings.Contains(out, restored) || !strings.Contains(run("", "get", "we/one", "-n", "shop"), "10.0.0.1") {
		t.Errorf("rollback: %s", out)
	}
	eventually(t, ctx, "the rollback is recorded", recorded(3))
	if out := run("", append(rollback, "--store", "fs://"+t.TempDir())...); !strings.Contains(out, "is no store of control plane "+control) {
		t.Errorf("rollback to a directory: %s", out)
	}
	run("", "delete", "we/one", "-n", "shop")
	eventually(t, ctx, "the deletion is recorded", recorded(4))
	if out := run("", append(rollback, "--store", "k8s://"+admin)...); !strings.Contains(out, restored) || !strings.Contains(run("", "get", "we/one", "-n", "shop"), "10.0.0.1") {
		t.Errorf("rollback of a deleted object: %s", out)
	}
}
