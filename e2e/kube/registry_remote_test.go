// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRegistryOfTwoClusters serves a Service that exists in two clusters:
//   - the kubeconfig of the second is in a Secret of the first, with the
//     certificates in it;
//   - the endpoints of both are served and updated;
//   - a Secret that would read files, or is invalid, changes nothing;
//   - without its API server the second cluster stays, without its Secret it is removed.
func TestRegistryOfTwoClusters(t *testing.T) {
	t.Parallel()
	first, second := New(t, Options{}), New(t, Options{})
	ctx := testContext(t)
	one, two := writer{t, first.Admin()}, writer{t, second.Admin()}
	for _, c := range []*Cluster{first, second} {
		one.must(c.CreateNamespace(ctx, "shop"))
	}
	plane := newControl(t, install(t, first, "rbac.yaml"), nil)
	plane.args = append(plane.args, "--grpcAddr", plane.host+":15010")
	one.must(plane.Start(ctx))
	_, err := second.Admin().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: meshNamespace, Labels: map[string]string{"topology.istio.io/network": "other"},
	}}, metav1.CreateOptions{})
	one.must(err)
	pods := [2]*corev1.Pod{one.pod("shop", "catalog-1", "10.1.0.1", nil), two.pod("shop", "catalog-1", "10.2.0.1", nil)}
	for i, w := range []writer{one, two} {
		w.service("shop", "catalog", nil)
		w.slice("shop", "catalog-x", "catalog", pods[i])
	}
	two.service("shop", "orders", nil)
	v := watchControl(t, plane.host+":15010", "shop")
	defer v.explain(t)
	eventually(t, ctx, "the own cluster", v.has(catalog, "10.1.0.1:8080"))

	secrets := first.Admin().CoreV1().Secrets(meshNamespace)
	write := func(kubeconfig string) {
		t.Helper()
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "second", Labels: map[string]string{"istio/multiCluster": "true"}},
			StringData: map[string]string{"second": kubeconfig},
		}
		_, err := secrets.Create(ctx, s, metav1.CreateOptions{})
		if ignoreExists(err) == nil && err != nil {
			_, err = secrets.Update(ctx, s, metav1.UpdateOptions{})
		}
		one.must(err)
	}
	path, err := second.Kubeconfig("kubernetes-admin", "system:masters")
	one.must(err)
	good, err := os.ReadFile(path)
	one.must(err)
	write(string(good))
	eventually(t, ctx, "both clusters", v.has(catalog, "10.1.0.1:8080", "10.2.0.1:8080"))
	eventually(t, ctx, "a service of the second alone", v.has("outbound|80||orders.shop.svc.cluster.local"))
	more := two.pod("shop", "catalog-2", "10.2.0.2", nil)
	two.slice("shop", "catalog-x", "catalog", pods[1], more)
	eventually(t, ctx, "a change of the second", v.has(catalog, "10.1.0.1:8080", "10.2.0.1:8080", "10.2.0.2:8080"))

	logs := func(text string) func() bool {
		return func() bool {
			data, err := os.ReadFile(plane.Log())
			return err == nil && strings.Contains(string(data), text)
		}
	}
	clusters := func(want string) func() bool {
		return func() bool {
			return strings.Contains(plane.body(t, "/debug/clusterz"), want)
		}
	}
	state := `{"id":"second","secretName":"` + meshNamespace + `/second","syncStatus":`
	eventually(t, ctx, "the state of both clusters", clusters(`[{"id":"Kubernetes","secretName":"","syncStatus":"synced"},`+state+`"synced"}]`))
	write("users: [{name: u, user: {tokenFile: /etc/passwd}}]\n")
	eventually(t, ctx, "a kubeconfig that reads files is refused", logs("uses tokenFile, which is refused"))
	eventually(t, ctx, "the state names the reason", clusters(state+`"the kubeconfig uses tokenFile`))
	write("no: [kubeconfig")
	eventually(t, ctx, "what is no kubeconfig is refused", logs("the value is not a kubeconfig"))
	two.slice("shop", "catalog-x", "catalog", more)
	eventually(t, ctx, "the second is followed as before", v.has(catalog, "10.1.0.1:8080", "10.2.0.2:8080"))
	write(string(good) + "\n# signed again\n")
	two.slice("shop", "catalog-x", "catalog", pods[1])
	eventually(t, ctx, "the second is followed with the new one", v.has(catalog, "10.1.0.1:8080", "10.2.0.1:8080"))
	eventually(t, ctx, "the state of the new one", clusters(state+`"synced"`))
	second.APIServer.Kill()
	one.slice("shop", "catalog-x", "catalog")
	eventually(t, ctx, "the second stays without its API server", v.has(catalog, "10.2.0.1:8080"))
	eventually(t, ctx, "the state names what cannot be read", clusters(state+`"EndpointSlice: unreachable"`))
	one.must(secrets.Delete(ctx, "second", metav1.DeleteOptions{}))
	eventually(t, ctx, "the second is gone", v.has(catalog))
	eventually(t, ctx, "the own cluster alone", clusters(`[{"id":"Kubernetes","secretName":"","syncStatus":"synced"}]`))
}
