// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// pluginModule is a Wasm module (proxy-wasm ABI 0.2.1) that adds the header x-plugin to responses.
const pluginModule = "AGFzbQEAAAABHgVgAABgAX8Bf2ACf38AYAN/f38Bf2AFf39/f38BfwIiAQNlbnYacHJveHlfYWRkX2hlYWRlcl9tYXBfdmFsdWUABAMGBQABAAIDBQMBABAGCAF/AUGAgAILB4MBBgZtZW1vcnkCABdwcm94eV9hYmlfdmVyc2lvbl8wXzJfMQABGHByb3h5X29uX21lbW9yeV9hbGxvY2F0ZQACC19pbml0aWFsaXplAAMXcHJveHlfb25fY29udGV4dF9jcmVhdGUABBlwcm94eV9vbl9yZXNwb25zZV9oZWFkZXJzAAUKKQUCAAsLACMAIwAgAGokAAsCAAsCAAsSAEECQQBBCEGAAkEBEAAaQQALCxUCAEEACwh4LXBsdWdpbgBBgAILATE="

// goControlPlane is go-control-plane's server with a small mesh, and a fake authority. It can be
// stopped, and started again.
type goControlPlane struct {
	*controlPlane
	caches map[string]*cachev3.LinearCache
	server *grpc.Server
	served chan error
}

// newGoControlPlane returns a control plane for a proxy at an address. Port 8080 of the proxy
// routes to a backend through a Wasm plugin that is fetched from a URL.
func newGoControlPlane(t *testing.T, address, backend, plugin string) *goControlPlane {
	t.Helper()
	p := &goControlPlane{controlPlane: newControlPlane(t), caches: map[string]*cachev3.LinearCache{}}
	for _, typeURL := range []string{
		resourcev3.ClusterType, resourcev3.EndpointType, resourcev3.ListenerType, resourcev3.RouteType, resourcev3.SecretType, typeExtension, nds.TypeURL, typeProxyConfig,
	} {
		p.caches[typeURL] = cachev3.NewLinearCache(typeURL)
	}
	ads := &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3, InitialFetchTimeout: durationpb.New(0),
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
	manager := pack(t, &hcmv3.HttpConnectionManager{
		StatPrefix: "in", RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: "routes", ConfigSource: ads}},
		HttpFilters: []*hcmv3.HttpFilter{
			{Name: "plugin", ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
				ConfigSource: ads, TypeUrls: []string{
					"type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm", "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
				},
			}}},
			{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, &routerv3.Router{})}},
		},
	})
	module, err := base64.StdEncoding.DecodeString(pluginModule)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(module)
	wasm := &wasmfilterv3.Wasm{Config: &wasmv3.PluginConfig{Name: "plugin", Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
		Runtime: "envoy.wasm.runtime.v8", Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
			Sha256: hex.EncodeToString(sum[:]),
			HttpUri: &corev3.HttpUri{
				Uri: plugin, Timeout: durationpb.New(5 * time.Second), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"},
			},
		}}},
	}}}}
	p.set(t, resourcev3.ClusterType, "backend", &clusterv3.Cluster{
		Name: "backend", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads}, ConnectTimeout: durationpb.New(time.Second),
	})
	p.set(t, resourcev3.EndpointType, "backend", &endpointv3.ClusterLoadAssignment{ClusterName: "backend", Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: tcpAddress(t, backend)}}}},
	}}})
	p.set(t, resourcev3.ListenerType, "in", &listenerv3.Listener{
		Name: "in", Address: tcpAddress(t, address+":8080"),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager}}}}},
	})
	p.set(t, typeExtension, "plugin", &corev3.TypedExtensionConfig{Name: "plugin", TypedConfig: pack(t, wasm)})
	p.credential(t, address+":8443", manager, ads)
	p.generation(t, "1")
	table := &nds.Table{Hosts: map[string]nds.Host{"catalog.default.svc.cluster.local": {IPs: []string{"10.1.2.3"}, Registry: nds.Kubernetes, Shortname: "catalog", Namespace: "default"}}}
	names := &emptypb.Empty{} // Empty preserves unknown fields
	names.ProtoReflect().SetUnknown(table.Marshal())
	p.set(t, nds.TypeURL, "names", names)
	p.set(t, typeProxyConfig, "roots", &meshv1alpha1.ProxyConfig{CaCertificatesPem: []string{string(newControlPlane(t).rootPEM())}})
	return p
}

func (p *goControlPlane) set(t *testing.T, typeURL, name string, m proto.Message) {
	t.Helper()
	if err := p.caches[typeURL].UpdateResource(name, types.Resource(m)); err != nil {
		t.Fatal(err)
	}
}

// credential adds a TLS listener like that of a gateway, whose key comes from the control plane.
func (p *goControlPlane) credential(t *testing.T, address string, manager *anypb.Any, ads *corev3.ConfigSource) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := certs.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := p.certify(t, &x509.Certificate{DNSNames: []string{"shop.example.com"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, p.root, key)
	inline := func(b []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
	}
	p.set(t, resourcev3.SecretType, "kubernetes://shop", &tlsv3.Secret{Name: "kubernetes://shop", Type: &tlsv3.Secret_TlsCertificate{
		TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(certs.EncodeChain(leaf)), PrivateKey: inline(keyPEM)},
	}})
	p.set(t, resourcev3.ListenerType, "secure", &listenerv3.Listener{
		Name: "secure", Address: tcpAddress(t, address),
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager}}},
			TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(t, &tlsv3.DownstreamTlsContext{
				CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "kubernetes://shop", SdsConfig: ads}}},
			})}},
		}},
	})
}

// client returns a client that verifies the name of the TLS listener and opens a connection for
// each request.
func (p *goControlPlane) client() *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(p.root)
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: "shop.example.com"},
	}}
}

// generation sets the generation that responses contain.
func (p *goControlPlane) generation(t *testing.T, which string) {
	t.Helper()
	p.set(t, resourcev3.RouteType, "routes", &routev3.RouteConfiguration{
		Name: "routes",
		ResponseHeadersToAdd: []*corev3.HeaderValueOption{
			{Header: &corev3.HeaderValue{Key: "x-generation", Value: which}},
		},
		ValidateClusters: wrapperspb.Bool(false),
		VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "backend"}}},
		}}}},
	})
}

// listen serves at an address. It may be called again after stop.
func (p *goControlPlane) listen(t *testing.T, address string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := p.certify(t, &x509.Certificate{DNSNames: []string{"istiod.istio-system.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, p.root, key)
	p.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}},
	})))
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        map[string]cachev3.Cache{},
	}
	for typeURL, cache := range p.caches {
		mux.Caches[typeURL] = cache
	}
	securityv1alpha1.RegisterIstioCertificateServiceServer(p.server, p.controlPlane)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(p.server, serverv3.NewServer(t.Context(), mux, nil))
	l, err := ownnet.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	p.address, p.served = l.Addr().String(), make(chan error, 1)
	server, served := p.server, p.served
	go func() { served <- server.Serve(l) }()
	t.Cleanup(server.Stop)
}

// stop ends the server like a crash.
func (p *goControlPlane) stop(t *testing.T) {
	t.Helper()
	p.server.Stop()
	if err := <-p.served; err != nil {
		t.Error(err)
	}
}

func tcpAddress(t *testing.T, hostPort string) *corev3.Address {
	t.Helper()
	address, err := net.ResolveTCPAddr("tcp", hostPort)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(address.Port)},
	}}}
}

// serveOn runs an HTTP server on a loopback address reserved for these tests.
func serveOn(t *testing.T, host string, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: handler}}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// answer is a response that came through Envoy.
type answer struct {
	code                     int
	body, plugin, generation string
}

func askEnvoy(client *http.Client, url string) (a answer, err error) {
	resp, err := client.Post(url, "", nil) // Go never retries a POST automatically
	if err != nil {
		return a, err
	}
	defer func() { _ = resp.Body.Close() }() // closing cannot lose data
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(body), resp.Header.Get("x-plugin"), resp.Header.Get("x-generation")}, err
}

// load sends requests continuously over persistent and new connections.
type load struct {
	asked   atomic.Int64
	done    chan struct{}
	clients sync.WaitGroup

	mu       sync.Mutex // guards failures
	failures []string
}

func startLoad(url string) *load {
	l := &load{done: make(chan struct{})}
	for i := range 4 {
		l.clients.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: i%2 == 0}, Timeout: 5 * time.Second}
			defer client.CloseIdleConnections()
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for {
				l.ask(client, url)
				select {
				case <-l.done:
					return
				case <-pace.C:
				}
			}
		})
	}
	return l
}

func (l *load) ask(client *http.Client, url string) {
	a, err := askEnvoy(client, url)
	l.asked.Add(1)
	failure := ""
	if err != nil {
		failure = err.Error()
	} else if a.code != http.StatusOK || a.body != "hello" || a.plugin != "1" {
		failure = fmt.Sprintf("%+v", a)
	}
	if failure != "" {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failures = append(l.failures, failure)
	}
}

// stop stops the load and returns the failed requests.
func (l *load) stop() []string {
	close(l.done)
	l.clients.Wait()
	return l.failures
}
