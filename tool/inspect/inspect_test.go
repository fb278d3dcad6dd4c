// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spf13/cobra"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

const testHost = "127.77.51.20"

// shelf is a store with constant objects.
type shelf []*model.Config

func (s shelf) Schemas() []schema.Schema { return schema.All() }

func (s shelf) Get(key model.Key) *model.Config {
	for _, c := range s {
		if c.Key == key {
			return c
		}
	}
	return nil
}

func (s shelf) List(kind model.Kind, _ string) (out []*model.Config) {
	for _, c := range s {
		if c.Kind == kind {
			out = append(out, c)
		}
	}
	return out
}

func stored(kind model.Kind, namespace, name string, spec any) *model.Config {
	return &model.Config{Key: model.Key{Kind: kind, Namespace: namespace, Name: name}, Spec: spec, Source: "shop.yaml:1"}
}

// control is a control plane that runs in this process.
type control struct {
	*discovery.Server
	ads, http string
	objects   shelf
	mesh      *snapshot.Mesh
}

func startControl(t *testing.T, name string) *control {
	t.Helper()
	return startControlWith(t, name, nil)
}

// startControlWith starts a control plane that knows Secrets, which may be nil.
func startControlWith(t *testing.T, name string, secretSource credentials.Source) *control {
	t.Helper()
	s, err := discovery.New(discovery.Config{Generator: generate.New(generate.Config{}), Workers: 1, Secrets: secrets.Config{Source: secretSource}})
	if err != nil {
		t.Fatal(err)
	}
	c := &control{Server: s, objects: shelf{
		stored(model.ServiceEntry, "shop", "web", &networkingv1alpha3.ServiceEntry{
			Hosts: []string{"web.shop.svc.cluster.local"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
			Ports:     []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: "127.77.51.21"}},
		}),
		stored(model.DestinationRule, "default", "a.b", &networkingv1alpha3.DestinationRule{Host: "web.shop.svc.cluster.local"}),
	}}
	s.Debug(debug.Config{Replica: name, Version: "v1", Objects: c.objects})
	c.push()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", testHost+":0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	ads, web := listen(), listen()
	c.ads, c.http = ads.Addr().String(), web.Addr().String()
	g := grpc.NewServer(grpc.ForceServerCodecV2(discovery.Codec()))
	s.Register(g, nil)
	h := &http.Server{Handler: s.DebugHandler(), ReadHeaderTimeout: time.Second}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 3)
	go func() { done <- s.Run(ctx) }()
	go func() { done <- g.Serve(ads) }()
	go func() { done <- h.Serve(web) }()
	t.Cleanup(func() {
		cancel()
		g.Stop()
		_ = h.Close() // nothing is left to serve
		for range 3 {
			if err := <-done; err != nil && !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		}
	})
	return c
}

func (c *control) push() {
	settings := meshconfig.Default()
	settings.ProxyHttpPort = 15080
	c.mesh = snapshot.Build(c.mesh, snapshot.Input{Mesh: settings, List: func(k model.Kind) []*model.Config { return c.objects.List(k, "") }, Get: c.objects.Get}, model.Change{All: true})
	c.Push(c.mesh, model.Change{All: true})
}

// proxy opens the stream of a proxy that acknowledges its clusters, or rejects them with an error
// message, and acknowledges its listeners. It returns after the control plane has processed the
// requests.
func (c *control) proxy(t *testing.T, name, words string) {
	t.Helper()
	c.join(t, "sidecar~127.77.51.22~"+name+".shop~shop.svc.cluster.local", map[string]any{"INTERCEPTION_MODE": "NONE"}, words)
}

// join opens the stream of a proxy with a node id and metadata, as proxy does.
func (c *control) join(t *testing.T, id string, metadata map[string]any, words string) {
	t.Helper()
	conn, err := grpc.NewClient(c.ads, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is left to read
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, namespace, _ := strings.Cut(strings.Split(id, "~")[2], ".")
	metadata["NAMESPACE"], metadata["CLUSTER_ID"], metadata["ISTIO_VERSION"] = namespace, "east", "1.18.0"
	md, err := structpb.NewStruct(metadata)
	if err != nil {
		t.Fatal(err)
	}
	const typeURL = xds.TypeCluster
	send := func(q *discoveryv3.DiscoveryRequest) {
		if err := s.Send(q); err != nil {
			t.Fatal(err)
		}
	}
	send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, Node: &corev3.Node{Id: id, Metadata: md}})
	r, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	answer := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo()}
	if words != "" {
		answer.ErrorDetail = &rpcstatus.Status{Code: 13, Message: words}
	}
	send(answer)
	send(&discoveryv3.DiscoveryRequest{TypeUrl: xds.TypeListener}) // its response is sent after the acknowledgment was processed
	for {
		r, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r.GetTypeUrl() != debug.Type {
			send(&discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo()})
		}
		switch r.GetTypeUrl() {
		case xds.TypeListener:
			// The response is sent after the acknowledgment was processed.
			send(&discoveryv3.DiscoveryRequest{TypeUrl: debug.Type, ResourceNames: []string{"list"}})
		case debug.Type:
			return
		}
	}
}

// exit is an error with an exit code.
type exit struct {
	code int
	error
}

// run executes a command line.
func run(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	return runWith(t, "", args...)
}

// runWith executes a command line with an input.
func runWith(t *testing.T, in string, args ...string) (out, errs string, code int) {
	t.Helper()
	root := &cobra.Command{Use: "outrigger", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands(Config{
		Width:   tableWidth,
		Default: func() ([]string, error) { return nil, errors.New("name one with --control") },
		Exit: func(code int, err error) error {
			if err == nil {
				err = errors.New("")
			}
			return exit{code, err}
		},
	})...)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit{exitUsage, err} }) // as main does
	var stdout, stderr bytes.Buffer
	root.SetIn(strings.NewReader(in))
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	var e exit
	switch {
	case errors.As(err, &e):
		return stdout.String(), stderr.String() + e.Error(), e.code
	case err != nil:
		t.Fatalf("%v: %v", args, err)
	}
	return stdout.String(), stderr.String(), 0
}

// TestCommands queries control planes in this process with proxies that use ADS.
func TestCommands(t *testing.T) {
	t.Parallel()
	one, two := startControl(t, "istiod-0"), startControl(t, "istiod-1")
	one.proxy(t, "web-1", "")
	one.proxy(t, "web-2", "")
	two.proxy(t, "cart-1", "Error adding/updating cluster(s) outbound|80||web.shop.svc.cluster.local: no such thing")
	both := []string{"--control", one.http + "," + two.http}
	nobody := listenNowhere(t)
	for _, tc := range []struct {
		args []string
		code int
		has  string // parts of the output, separated by |
	}{
		{append([]string{"status"}, both...), 1, "NAME|TYPES|CDS|web-1.shop|web-2.shop|cart-1.shop|istiod-0|istiod-1|REJECTED|SYNCED|no such thing|1 has rejected something"},
		{append([]string{"status", "-o", "wide"}, both...), 1, "NAME|CDS|ISTIOD|web-1.shop|web-2.shop|cart-1.shop|istiod-0|istiod-1|1.18.0|REJECTED|SYNCED (|no such thing|1 has rejected something"},
		{append([]string{"ps"}, both...), 1, "web-1.shop"},
		{[]string{"status", "--control", one.http}, 0, "2 proxies: all have what they were sent."},
		{append([]string{"status", "web-1"}, both...), 0, "Name:|web-1.shop|control plane istiod-0|LDS|explain web-1.shop"},
		{append([]string{"status", "cart-1.shop"}, both...), 1, "cart-1.shop|REJECTED|Envoy says: |no such thing"},
		{append([]string{"status", "web"}, both...), 1, "the beginning of several proxies: web-1.shop, web-2.shop"},
		{append([]string{"status", "api"}, both...), 1, `no proxy "api" is connected; there are: cart-1.shop, web-1.shop, web-2.shop`},
		{[]string{"status", "--control", one.http, "--control", nobody}, 1, "web-1.shop|did not respond: its proxies are missing here|error: control plane " + nobody},
		{[]string{"status", "--control", nobody}, 1, "No control plane was reached"},
		{[]string{"status", "-o", "xml", "--control", one.http}, 2, "write table, wide, yaml or json"},
		{[]string{"explain", "se/web.shop", "-o", "name", "--control", one.http}, 2, "write table, wide, yaml or json"},
		{[]string{"explain", "IST0112", "-o", "log"}, 2, "write table, wide, yaml or json"},
		{[]string{"explain", "ist0112", "-o", "yaml"}, 0, "code: IST0112|severity: error|when: a route of a gateway"},
		{[]string{"explain", "IST0112"}, 0, "error IST0112 VirtualService/shop/edge IST0112.yaml:41|Write port.number.|name: web"},
		{[]string{"explain", "IST0001"}, 0, "It is not reported: a fault of the analysis"},
		{[]string{"status", "a", "b"}, 2, "one proxy"},
		{[]string{"status"}, 2, "name one with --control"},
		{[]string{"status", "--control", "a b"}, 2, "write host:port"},
		{append([]string{"explain", "se/web.shop"}, both...), 1, "ServiceEntry web in namespace shop, from shop.yaml:1|3         1|2 of 3 proxies have it in force, 1 has rejected it|cart-1.shop   REJECTED|no such thing"},
		{append([]string{"explain", "serviceentry", "web", "-n", "shop"}, both...), 1, "ServiceEntry web"},
		{append([]string{"explain", "dr/a.b"}, both...), 0, "DestinationRule a.b in namespace default"},
		{append([]string{"explain", "dr/a.b.default"}, both...), 0, "DestinationRule a.b in namespace default"},
		{append([]string{"explain", "vs/none.shop"}, both...), 1, "There is no VirtualService none in namespace shop|outrigger get virtualservice -A"},
		{append([]string{"explain", "web-1.shop"}, both...), 0, "Name:|1 object decides what it has|serviceentry/web.shop|1 CDS"},
		{append([]string{"explain", "web-1", "-n", "shop"}, both...), 0, "serviceentry/web.shop"},
		{append([]string{"explain", "nobody"}, both...), 1, "for an object, also write the kind: vs/nobody"},
		{[]string{"explain", "se/web.shop", "--control", one.http, "--control", nobody}, 1, "2 of 2 proxies have it in force|error: control plane"},
		{[]string{"explain", "se/web.shop", "--control", nobody}, 1, "No control plane was reached"},
		{append([]string{"explain", "thing/x"}, both...), 2, `kind "thing" is unknown`},
		{append([]string{"explain", "vs/"}, both...), 2, "the name of the object is missing"},
		{append([]string{"explain"}, both...), 2, "no object is named"},
		{append([]string{"explain", "request"}, both...), 2, "--from CLIENT --to WORKLOAD"},
		{append([]string{"explain", "request", "web"}, both...), 2, `the argument "web" is not expected`},
		{append([]string{"explain", "request", "--from", "none", "--to", "web", "--port", "80", "--jwt", "nothing/here"}, both...), 2, "neither a token nor a file with one"},
		{append([]string{"explain", "request", "--from", "none", "--to", "web-1", "--port", "7", "-n", "shop"}, both...), 1, "Denied: the connection is closed|web-1.shop, port 7|nothing listens on port 7"},
		{append([]string{"explain", "request", "--from", "shop/a", "--to", "nobody"}, both...), 1, `"nobody" is unknown`},
		{[]string{"explain", "request", "--from", "none", "--to", "web", "--control", nobody}, 1, "No control plane was reached"},
	} {
		out, errs, code := run(t, tc.args...)
		for word := range strings.SplitSeq(tc.has, "|") {
			if !strings.Contains(out+errs, word) {
				t.Errorf("%v: the output does not contain %q:\n%s%s", tc.args, word, out, errs)
			}
		}
		if code != tc.code {
			t.Errorf("%v: got exit code %d, want %d:\n%s%s", tc.args, code, tc.code, out, errs)
		}
	}
}

// TestMachineReadable parses the JSON and YAML output.
func TestMachineReadable(t *testing.T) {
	t.Parallel()
	c := startControl(t, "istiod-0")
	c.proxy(t, "web-1", "")
	for _, command := range [][]string{{"status"}, {"status", "web-1.shop"}, {"explain", "se/web.shop"}, {"explain", "web-1.shop"}, {"explain", "request", "--from", "none", "--to", "web-1.shop", "--port", "7"}} {
		var parsed [2]any
		for i, form := range []string{"json", "yaml"} {
			out, errs, code := run(t, append(command, "-o", form, "--control", c.http)...)
			if denied := slices.Contains(command, "request"); (code != 0) != denied || errs != "" {
				t.Fatalf("%v: got exit code %d: %s", command, code, errs)
			}
			read := json.Unmarshal
			if form == "yaml" {
				read = func(b []byte, into any) error { return yaml.Unmarshal(b, into) }
			}
			if err := read([]byte(out), &parsed[i]); err != nil || !strings.Contains(out, "web-1.shop") {
				t.Errorf("%v -o %s: got error %v, output:\n%s", command, form, err, out)
			}
		}
	}
	out, _, code := run(t, "status", "-o", "json", "--control", listenNowhere(t))
	var list []asked
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 || list[0].Error == "" || code != 1 {
		t.Errorf("got exit code %d, error %v: %s", code, err, out)
	}
}

// TestOtherServer checks that a server that is not a control plane is reported.
func TestOtherServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", testHost+":0")
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/html/") {
			_, _ = w.Write([]byte("<html>")) // the client may have disconnected
			return
		}
		http.NotFound(w, r)
	})}
	go func() { _ = h.Serve(l) }()      // returns at the end of the test
	t.Cleanup(func() { _ = h.Close() }) // as above
	for address, want := range map[string]string{
		l.Addr().String():                       "it is not a control plane of Outrigger",
		"http://" + l.Addr().String() + "/html": "read the response of",
	} {
		if _, errs, code := run(t, "status", "--control", address); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: got exit code %d: %s", address, code, errs)
		}
	}
}

// listenNowhere returns an address on which no server listens.
func listenNowhere(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", testHost+":0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}
