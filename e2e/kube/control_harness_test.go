// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/certs"
)

// Addresses of the programs of this repository, one for each.
const (
	controlAddresses = "127.77.53."
	meshNamespace    = "istio-system"
	controlAccount   = "outrigger-control"
)

// build builds the programs of this repository as a user does, once for all tests.
var build = sync.OnceValue(func() error {
	if out, err := exec.Command("make", "-s", "-C", "../..", "build").CombinedOutput(); err != nil {
		return fmt.Errorf("make build: %w\n%s", err, out)
	}
	return nil
})

// program returns the path of one of them.
func program(t *testing.T, name string) string {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(filepath.Join("../../bin", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// address reserves an address until the end of the test.
func address(t *testing.T) string {
	t.Helper()
	a, lease, err := takeAddress(controlAddresses)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Close() }) // the test has ended
	return a
}

// run creates a program that is killed at the end of the test.
func run(t *testing.T, s *Server) *Server {
	t.Helper()
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Log(s.tail(40))
		}
	})
	return s
}

// answers returns a check that a URL returns 200.
func answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			return err
		}
		defer func() { _ = a.Body.Close() }() // it was not read
		if a.StatusCode != http.StatusOK {
			return errors.New(url + " answers " + a.Status)
		}
		return nil
	}
}

// install applies the manifests of a user, and returns the kubeconfig of the control plane's
// service account.
func install(t *testing.T, c *Cluster, manifests ...string) (kubeconfig string) {
	t.Helper()
	return installOnly(t, c, append(manifests, "rbac-services.yaml")...)
}

// installOnly is install without the rights for services.
func installOnly(t *testing.T, c *Cluster, manifests ...string) (kubeconfig string) {
	t.Helper()
	for _, name := range manifests {
		text, err := os.ReadFile("../../examples/kubernetes/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Apply(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	token, err := c.Token(t.Context(), meshNamespace, controlAccount, TokenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	if kubeconfig, err = c.TokenKubeconfig(file); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// control is a control plane of this repository.
type control struct {
	*Server
	host string
	dir  string
}

// newControl creates a control plane with an empty configuration and its own working directory,
// without starting it.
func newControl(t *testing.T, kubeconfig string, env []string, args ...string) *control {
	t.Helper()
	c := &control{host: address(t), dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(c.dir, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	c.Server = run(t, &Server{
		name: "outrigger-control", path: program(t, "outrigger-control"), dir: c.dir,
		args: append([]string{
			"discovery", "--configDir", "config", "--kubeconfig", kubeconfig, "--grpcAddr", "", "--monitoringAddr", "",
			"--secureGRPCAddr", c.secure(), "--httpAddr", c.host + ":8080", "--httpsAddr", c.host + ":15017", "--log_output_level", "debug",
		}, args...),
		env:   append([]string{"POD_NAME=control-" + c.host}, env...),
		ready: answers("http://" + c.host + ":8080/ready"),
	})
	return c
}

// startControl creates and starts a control plane.
func startControl(t *testing.T, kubeconfig string, env []string, args ...string) *control {
	t.Helper()
	c := newControl(t, kubeconfig, env, args...)
	if err := c.Start(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *control) secure() string { return c.host + ":15012" }

// rootsOf returns the roots of a namespace.
func rootsOf(ctx context.Context, c *Cluster, namespace string) (string, error) {
	m, err := c.Admin().CoreV1().ConfigMaps(namespace).Get(ctx, rootsMap, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return m.Data["root-cert.pem"], nil
}

// waitRoots waits for the roots of a namespace.
func waitRoots(t *testing.T, c *Cluster, namespace string) (roots string) {
	t.Helper()
	soon(t, "roots in "+namespace, func() (err error) {
		roots, err = rootsOf(t.Context(), c, namespace)
		return err
	})
	return roots
}

// dial connects to a control plane, with a client certificate if there is one.
func (c *control) dial(t *testing.T, roots string, own ...tls.Certificate) *grpc.ClientConn {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(roots)) {
		t.Fatalf("no roots in %q", roots)
	}
	conn, err := grpc.NewClient(c.secure(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: pool, Certificates: own, ServerName: "istiod.istio-system.svc", MinVersion: tls.VersionTLS12,
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test has ended
	return conn
}

// withToken adds the metadata of an agent to a call.
func withToken(ctx context.Context, token, cluster string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token, "clusterid", cluster)
}

// sign requests a certificate.
func sign(ctx context.Context, t *testing.T, conn *grpc.ClientConn, id certs.ID, fields map[string]any) (tls.Certificate, []*x509.Certificate, error) {
	t.Helper()
	key, csr := request(t, id, certs.ECDSAP256)
	meta, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	answer, err := securityv1alpha1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx,
		&securityv1alpha1.IstioCertificateRequest{Csr: string(csr), ValidityDuration: 3600, Metadata: meta})
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return pairOf(t, key, answer.GetCertChain()[:len(answer.GetCertChain())-1])
}

func pairOf(t *testing.T, key crypto.Signer, texts []string) (tls.Certificate, []*x509.Certificate, error) {
	t.Helper()
	chain, err := certs.ParseChain([]byte(strings.Join(texts, "")))
	if err != nil {
		t.Fatal(err)
	}
	pair := tls.Certificate{PrivateKey: key}
	for _, c := range chain {
		pair.Certificate = append(pair.Certificate, c.Raw)
	}
	return pair, chain, nil
}

// clusters opens an ADS stream and returns the type of the first response.
func clusters(ctx context.Context, t *testing.T, conn *grpc.ClientConn, id certs.ID) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	node, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": id.Namespace, "SERVICE_ACCOUNT": id.ServiceAccount, "INTERCEPTION_MODE": "NONE", "CLUSTER_ID": "Kubernetes",
	})
	if err != nil {
		t.Fatal(err)
	}
	const kind = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: kind, Node: &corev3.Node{
		Id: "sidecar~10.0.0.1~web." + id.Namespace + "~" + id.Namespace + ".svc.cluster.local", Metadata: node,
	}}); err != nil {
		_, err = stream.Recv() // it has the reason
		return err
	}
	answer, err := stream.Recv()
	if err == nil && answer.GetTypeUrl() != kind {
		err = fmt.Errorf("the answer is of type %s", answer.GetTypeUrl())
	}
	return err
}

// istioToken returns the token that a kubelet would mount into the pod of a sidecar.
func istioToken(t *testing.T, c *Cluster, namespace, account string, pod *corev1.Pod) string {
	t.Helper()
	token, err := c.Token(t.Context(), namespace, account, TokenOptions{Audiences: []string{"istio-ca"}, Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	return token
}
