// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// oneSecret is a Source with the Secret default/there.
type oneSecret struct{ synced chan struct{} }

func (oneSecret) Get(namespace, name string) (*credentials.Credential, error) {
	if namespace == "default" && name == "there" {
		return &credentials.Credential{Pair: &credentials.KeyPair{}}, nil
	}
	return nil, fmt.Errorf("the Secret %s/%s: %w", namespace, name, credentials.ErrNotFound)
}

func (oneSecret) OnChange(func(namespace, name string)) {}

func (s oneSecret) Synced() <-chan struct{} { return s.synced }

// TestExplainGateway explains Gateways that no proxy has, or whose certificate is missing.
func TestExplainGateway(t *testing.T) {
	t.Parallel()
	server := func(port uint32, credential string) *networkingv1alpha3.Server {
		return &networkingv1alpha3.Server{
			Port: &networkingv1alpha3.Port{Number: port, Protocol: "HTTPS", Name: fmt.Sprint("https-", port)}, Hosts: []string{"*"},
			Tls: &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_SIMPLE, CredentialName: credential},
		}
	}
	gateway := func(name string) *model.Config {
		return debugtest.Stored(model.Gateway, "default", name, &networkingv1alpha3.Gateway{Selector: map[string]string{"istio": name}, Servers: []*networkingv1alpha3.Server{
			server(8443, "there"), server(8444, "none"), server(8445, "kubernetes://other/there"),
		}})
	}
	rival := gateway("rival") // all of its ports are those of edge
	rival.Spec.(*networkingv1alpha3.Gateway).Selector = map[string]string{"istio": "edge"}
	objects := append(debugtest.Objects{gateway("edge"), gateway("lost"), rival}, debugtest.GatewayObjects()...)
	source := oneSecret{make(chan struct{})}
	s, err := New(Config{Generator: generate.New(generate.Config{}), Workers: 1, Secrets: secrets.Config{Source: source}})
	if err != nil {
		t.Fatal(err)
	}
	s.Debug(debug.Config{Objects: objects})
	s.Push(objects.Mesh(nil), model.Change{All: true})
	about := func(kind model.Kind, name string) (o report.Object) {
		debugGet(t, s, fmt.Sprintf("explain?kind=%s&namespace=default&name=%s", kind, name), &o)
		return o
	}
	if o := about(model.Gateway, "edge"); o.Nobody != "it is for gateways with the labels istio=edge, and no gateway is connected" {
		t.Errorf("without proxies: %+v", o)
	}
	st := &stream{server: s, proxy: &model.Proxy{
		ID: "edge.default", Role: "router", IPs: []string{"127.77.65.2"}, Namespace: "default", Labels: map[string]string{"istio": "edge"},
	}}
	st.acks.track(&acknowledgement{typeURL: xds.TypeCluster})
	s.streams[st] = struct{}{}
	if o := about(model.Gateway, "edge"); o.Nobody != "" || len(o.Proxies) != 1 || len(o.Resources) != 6 || len(o.Lacking) != 0 {
		t.Errorf("before Secrets were read: %+v", o)
	}
	if o := about(model.Gateway, "rival"); o.Nobody != "" || len(o.Proxies) != 0 {
		t.Errorf("a Gateway whose ports another one has: %+v", o)
	}
	close(source.synced)
	lacking := strings.Join(about(model.Gateway, "edge").Lacking, "\n")
	for _, want := range []string{
		`spec.servers[1].tls: proxies of the namespace default do not receive the credential "none": the Secret default/none: credential not found`,
		`spec.servers[2].tls: proxies of the namespace default do not receive the credential "kubernetes://other/there": `,
	} {
		if !strings.Contains(lacking, want) {
			t.Errorf("%q is missing in\n%s", want, lacking)
		}
	}
	if strings.Count(lacking, "\n") != 1 {
		t.Errorf("more is lacking than two:\n%s", lacking)
	}
	for _, o := range []report.Object{about(model.Gateway, "lost"), about(model.KubernetesGateway, "front")} {
		if !strings.Contains(o.Nobody, "and the 1 connected gateway is not among them") {
			t.Errorf("%s: %+v", o.Name, o)
		}
	}
}
