// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// TestCluster asks the control plane and the agents of a cluster, through a kubectl of the test that leads
// to servers of the test.
func TestCluster(t *testing.T) {
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, requestsOf("destination", "web", "cart", 5, 0)) // the test sees what is missing
	}))
	t.Cleanup(agent.Close)
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(report.Replica{Name: "istiod-1", Proxies: []report.Proxy{ // see above
			{Name: "cart-1.shop", Namespace: "shop", Addresses: []string{"203.0.113.7"}},
			{Name: "local.shop", Namespace: "shop", Addresses: []string{"127.77.51.77"}},
			{Name: "vm", Namespace: "shop", Addresses: []string{"203.0.113.8"}},
			{Name: "gone-1.shop", Namespace: "shop", Addresses: []string{"203.0.113.9"}},
		}})
	}))
	t.Cleanup(control.Close)
	dir := t.TempDir()
	port := func(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://127.0.0.1:") }
	kubectl := func(pods string) {
		script := "#!/bin/sh\necho \"$@\" >> " + dir + "/calls\ncase \"$1 $4\" in\n" +
			"'get --selector=app=istiod'|'get '*) " + pods + ";;\n" +
			"'port-forward pod/istiod-1') echo 'Forwarding from 127.0.0.1:" + port(control) + " -> 15014'; exec sleep 1000;;\n" +
			"'port-forward pod/cart-1') echo 'Forwarding from 127.0.0.1:" + port(agent) + " -> 15020'; exec sleep 1000;;\n" +
			"*) echo 'pods \"x\" not found' >&2; exit 1;;\nesac\n"
		if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700); err != nil { //nolint:gosec // it is a program
			t.Fatal(err)
		}
	}
	kubectl("echo istiod-1")
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	c := NewCluster(t.Context(), "mesh")
	c.hurry(time.Minute)
	for range 2 { // the second time from memory
		if got, err := c.controls(); err != nil || !slices.Equal(got, []string{strings.TrimPrefix(control.URL, "http://")}) {
			t.Fatalf("control planes %q, %v", got, err)
		}
	}
	f := topFlags{reachFlags: reachFlags{askFlags: askFlags{timeout: time.Minute, output: outTable, cfg: Config{
		Cluster: c, Default: func() ([]string, error) { return c.controls() }, Exit: func(_ int, err error) error { return err },
	}}}}
	var complaints bytes.Buffer
	for range 2 {
		proxies, _, err := f.choose(t.Context(), &complaints, "")
		var got []string
		for _, p := range proxies {
			got = append(got, p.name+" "+p.agent)
		}
		want := []string{"cart-1.shop 127.0.0.1:" + port(agent), "local.shop 127.77.51.77:15020", "vm 203.0.113.8:15020", "gone-1.shop 203.0.113.9:15020"}
		slices.Sort(got)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("agents %q, want %q, %v", got, want, err)
		}
	}
	if text := complaints.String(); strings.Count(text, `error: proxy gone-1.shop: kubectl port-forward --namespace=shop --address=127.0.0.1 pod/gone-1 :15020: pods "x" not found`) != 2 {
		t.Errorf("the complaints are %s", text)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil || strings.Count(string(calls), "get pods --namespace=mesh --selector=app=istiod ") != 1 || strings.Count(string(calls), "port-forward") != 3 {
		t.Errorf("kubectl was called with\n%s%v", calls, err)
	}
	// A forwarding that ended begins again.
	way := c.roads["shop/cart-1:15020"].way
	way.stop()
	<-way.exited
	if got, err := c.to("shop", "cart-1", "15020", time.Minute); err != nil || got != way.address || c.roads["shop/cart-1:15020"].way == way {
		t.Errorf("again at %s, %v", got, err)
	}
	var many []proxy
	for i := range maxForwards + 1 {
		many = append(many, proxy{name: fmt.Sprintf("cart-1%s.shop", strings.Repeat(" ", i)), namespace: "shop", agent: net.JoinHostPort("203.0.113.7", agentPort)})
	}
	if _, err := c.agents(many, time.Minute, &complaints); err == nil || !strings.Contains(err.Error(), "choose some with PROXY or -n NAMESPACE") {
		t.Errorf("many pods: %v", err)
	}
	if _, err := AnalyzeChange(t.Context(), "", c, "k8s://", analyze.Change{}); err == nil || !strings.Contains(err.Error(), "the control plane at "+strings.TrimPrefix(control.URL, "http://")) {
		t.Errorf("a control plane that does not compare: %v", err)
	}
	last := c.roads["shop/cart-1:15020"].way
	c.Close()
	if !last.ended() {
		t.Error("kubectl runs after Close")
	}

	for pods, want := range map[string]string{
		"true": "in the cluster: no pod with the label app=istiod runs in the namespace mesh: name that of the control plane with --istioNamespace; name another control plane with --control",
		"echo 'server has no \x1b[1m' >&2; exit 1": "kubectl get pods: server has no  [1m; name another",
		"echo istiod-2": `that of the cluster is not reached: kubectl port-forward --namespace=mesh --address=127.0.0.1 pod/istiod-2 :15014: pods "x" not found; name another`,
	} {
		kubectl(pods)
		c := NewCluster(t.Context(), "mesh")
		c.hurry(time.Minute)
		if _, err := c.controls(); err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, errCluster) {
			t.Errorf("%s: %v", pods, err)
		}
		c.Close()
	}
	t.Setenv("PATH", t.TempDir())
	if none := (*Cluster)(nil); none.usable() || NewCluster(t.Context(), "mesh").usable() {
		t.Error("a cluster can be asked without kubectl")
	}
}

func TestControlNamespace(t *testing.T) {
	t.Parallel()
	for _, c := range []*Cluster{nil, NewCluster(t.Context(), "")} {
		if got := c.controlNamespace(); got != "istio-system" {
			t.Errorf("the default namespace is %s", got)
		}
	}
	c := NewCluster(t.Context(), "")
	f := askFlags{cfg: Config{Cluster: c, Default: func() ([]string, error) { return []string{c.namespace + ":15014"}, nil }}}
	cmd := &cobra.Command{Use: "status"}
	f.add(cmd)
	if err := cmd.ParseFlags([]string{"-i", "mesh"}); err != nil {
		t.Fatal(err)
	}
	if got, err := f.addresses(); err != nil || !slices.Equal(got, []string{"mesh:15014"}) {
		t.Errorf("with -i mesh the control plane is looked for in %q, %v", got, err)
	}
}
