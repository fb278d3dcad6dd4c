// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/certs"
)

// agent is an agent of this repository, in a directory like the file system of
// its container.
type agent struct {
	*Server
	dir string
}

// newAgent creates the agent of shop/web as the injector does, without starting it. It has the
// roots of the namespace, and a token.
func newAgent(t *testing.T, cp *control, roots, token string) *agent {
	t.Helper()
	host := address(t)
	dir, err := os.MkdirTemp("", directories) // the path of a Unix socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // the test has ended
	a := &agent{dir: dir}
	if err := os.Mkdir(filepath.Join(dir, "certs"), 0o700); err != nil {
		t.Fatal(err)
	}
	a.write(t, "var/run/secrets/istio/root-cert.pem", roots)
	a.write(t, "var/run/secrets/tokens/istio-token", token)
	a.Server = run(t, &Server{
		name: "outrigger-agent", path: program(t, "outrigger-agent"), dir: dir,
		args: []string{"proxy", "sidecar", "--domain", "shop.svc.cluster.local", "--log_output_level=default:debug"},
		env: []string{
			"JWT_POLICY=third-party-jwt", "PILOT_CERT_PROVIDER=istiod", "CA_ADDR=" + cp.secure(),
			"POD_NAME=web", "POD_NAMESPACE=shop", "INSTANCE_IP=" + host, "SERVICE_ACCOUNT=web", "TRUST_DOMAIN=cluster.local",
			`PROXY_CONFIG={"discoveryAddress":"` + cp.secure() + `"}`, "ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_INTERCEPTION_MODE=NONE",
			"OUTRIGGER_BIND_ADDRESS=" + host, "DISABLE_ENVOY=true", "OUTPUT_CERTS=certs", "SECRET_TTL=12s",
		},
		ready: answers("http://" + host + ":15020/healthz/ready"),
	})
	return a
}

func (a *agent) write(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(a.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// leaf reads the certificate that the agent has written, and verifies it with the roots beside it.
func (a *agent) leaf() (*x509.Certificate, error) {
	text, err := os.ReadFile(filepath.Join(a.dir, "certs/cert-chain.pem"))
	if err != nil {
		return nil, err
	}
	roots, err := os.ReadFile(filepath.Join(a.dir, "certs/root-cert.pem"))
	if err != nil {
		return nil, err
	}
	chain, err := certs.ParseChain(text)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	_, err = chain[0].Verify(x509.VerifyOptions{Roots: pool})
	return chain[0], err
}

// renewed waits for another certificate than the given one.
func (a *agent) renewed(t *testing.T, old *x509.Certificate) (leaf *x509.Certificate) {
	t.Helper()
	soon(t, "the next certificate", func() (err error) {
		leaf, err = a.leaf()
		if err == nil && leaf.Equal(old) {
			err = errors.New("it is still the one before")
		}
		return err
	})
	return leaf
}

// TestAgentOnKubernetes runs an agent as in a pod, without Envoy, with the token of its pod. The
// agent:
//   - gets the certificate of its service account, is ready, and relays a stream
//     of an application that speaks xDS;
//   - renews its certificate, also while kube-apiserver is down;
//   - is not ready with a token for another audience; becomes ready with the right one, without a
//     restart.
func TestAgentOnKubernetes(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	kubeconfig := install(t, c, "rbac.yaml")
	if err := c.CreateNamespace(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	cp := startControl(t, kubeconfig, nil)
	roots := waitRoots(t, c, "shop")
	pod := podOn(t, c, "shop", "web", "node-1")
	id := certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}
	token := istioToken(t, c, "shop", "web", pod)
	web := newAgent(t, cp, roots, token)
	if err := web.Start(testContext(t)); err != nil {
		t.Fatal(err)
	}
	var leaf *x509.Certificate
	soon(t, "the first certificate", func() (err error) { leaf, err = web.leaf(); return err })
	if got, err := certs.CertificateID(leaf); err != nil || got != id || time.Until(leaf.NotAfter) > 12*time.Second {
		t.Errorf("got a certificate for %v until %v, error %v", got, leaf.NotAfter, err)
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(web.dir, "etc/istio/proxy/XDS"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test has ended
	if err := clusters(t.Context(), t, conn, id); err != nil {
		t.Errorf("a stream through the agent: %v", err)
	}
	leaf = web.renewed(t, leaf)

	vault, err := c.Token(t.Context(), "shop", "web", TokenOptions{Audiences: []string{"vault"}})
	if err != nil {
		t.Fatal(err)
	}
	stranger := newAgent(t, cp, roots, vault)
	if err := stranger.launch(); err != nil {
		t.Fatal(err)
	}
	soon(t, "a refusal", func() error { return logged(stranger.Server, "the token is for an audience other than istio-ca") })
	if err := stranger.ready(t.Context()); err == nil {
		t.Error("an agent without a certificate is ready")
	}
	stranger.write(t, "var/run/secrets/tokens/istio-token", token)
	if err := stranger.Wait(testContext(t)); err != nil {
		t.Errorf("with the right token: %v", err)
	}

	c.APIServer.Kill()
	for range 2 {
		leaf = web.renewed(t, leaf)
	}
	if err := clusters(t.Context(), t, conn, id); err != nil {
		t.Errorf("a stream through the agent, without kube-apiserver: %v", err)
	}
	if err := web.ready(t.Context()); err != nil {
		t.Error(err)
	}
}
