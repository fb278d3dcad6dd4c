// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/certs"
)

// TestControlPlane runs the control plane with only the rights of examples/kubernetes:
//   - the roots are in each namespace;
//   - the token of a service account is exchanged for a certificate, and the certificate for a
//     stream and the next certificate;
//   - tokens for another audience or another cluster are refused;
//   - a node account receives certificates of the pods on its node, and no others.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	kubeconfig := install(t, c, "rbac.yaml")
	if err := c.CreateNamespace(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	control := startControl(t, kubeconfig, []string{"CA_TRUSTED_NODE_ACCOUNTS=shop/agent", "CLUSTER_ID=one"}, "--clusterAliases", "uno=one")
	roots := waitRoots(t, c, "shop")
	if other := waitRoots(t, c, "default"); other != roots {
		t.Error("two namespaces have different roots")
	}
	web, agent := podOn(t, c, "shop", "web", "node-1"), podOn(t, c, "shop", "agent", "node-1")
	podOn(t, c, "shop", "far", "node-2")
	id := func(account string) certs.ID {
		return certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: account}
	}
	conn := control.dial(t, roots)
	webToken, agentToken := istioToken(t, c, "shop", "web", web), istioToken(t, c, "shop", "agent", agent)
	pair, chain, err := sign(withToken(t.Context(), webToken, "one"), t, conn, id("web"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := certs.CertificateID(chain[0]); err != nil || got != id("web") {
		t.Errorf("got a certificate for %v, error %v", got, err)
	}
	if err := clusters(withToken(t.Context(), webToken, "uno"), t, conn, id("web")); err != nil {
		t.Errorf("a stream with a token: %v", err)
	}
	own := control.dial(t, roots, pair)
	if err := clusters(t.Context(), t, own, id("web")); err != nil {
		t.Errorf("a stream with a certificate: %v", err)
	}
	if err := clusters(t.Context(), t, own, id("far")); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a stream for another identity: %v", err)
	}
	if _, _, err := sign(t.Context(), t, own, id("web"), nil); err != nil {
		t.Errorf("a certificate for a certificate: %v", err)
	}
	vault, err := c.Token(t.Context(), "shop", "web", TokenOptions{Audiences: []string{"vault"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		token, cluster, as string
		code               codes.Code
		says               string
	}{
		"by another name of the cluster": {webToken, "uno", "", codes.OK, ""},
		"another audience":               {vault, "one", "", codes.Unauthenticated, "an audience other than"},
		"another cluster":                {webToken, "Kubernetes", "", codes.Unauthenticated, "no API server is known"},
		"no token":                       {"", "one", "", codes.Unauthenticated, ""},
		"for a pod of the node":          {agentToken, "one", "web", codes.OK, ""},
		"for a pod of another node":      {agentToken, "one", "far", codes.Unauthenticated, "no pod of shop/far runs on the node"},
		"for another, untrusted":         {webToken, "one", "far", codes.Unauthenticated, "not a trusted node account"},
	} {
		as, fields := id("web"), map[string]any(nil)
		if tc.as != "" {
			as, fields = id(tc.as), map[string]any{"ImpersonatedIdentity": id(tc.as).String()}
		}
		_, chain, err := sign(withToken(t.Context(), tc.token, tc.cluster), t, conn, as, fields)
		if status.Code(err) != tc.code || !strings.Contains(status.Convert(err).Message(), tc.says) {
			t.Errorf("%s: got error %v", name, err)
		}
		if err == nil {
			if got, err := certs.CertificateID(chain[0]); err != nil || got != as {
				t.Errorf("%s: got a certificate for %v, error %v", name, got, err)
			}
		}
	}
	// The log contains no part of a key or a token.
	text, err := os.ReadFile(control.Log())
	if err != nil {
		t.Fatal(err)
	}
	for name, secret := range map[string]string{"token": webToken, "payload": strings.Split(webToken, ".")[1], "key": "PRIVATE KEY"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("the log contains a %s", name)
		}
	}
	if !strings.Contains(string(text), "certificate issued") {
		t.Error("the log has no line about a certificate")
	}
	if _, err := os.Stat(filepath.Join(control.dir, "var/lib/outrigger/ca")); err == nil {
		t.Error("the authority is on disk, too")
	}
}

// TestControlReplicas starts two replicas at the same moment:
//   - both have the same root, which is in the Secret, of Istio's type;
//   - one of them writes the roots; when it is killed, the other one takes over;
//   - a restarted replica has the same root.
func TestControlReplicas(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	kubeconfig := install(t, c, "rbac.yaml")
	ctx := testContext(t)
	one, two := newControl(t, kubeconfig, nil), newControl(t, kubeconfig, nil)
	started := make(chan error, 2)
	for _, control := range []*control{one, two} {
		go func() { started <- control.Start(ctx) }()
	}
	if err := errors.Join(<-started, <-started); err != nil {
		t.Fatal(err)
	}
	roots := waitRoots(t, c, "default")
	secret, err := c.Admin().CoreV1().Secrets(meshNamespace).Get(ctx, "istio-ca-secret", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if secret.Type != "istio.io/ca-root" || string(secret.Data["ca-cert.pem"]) != roots || len(secret.Data["ca-key.pem"]) == 0 {
		t.Errorf("the Secret of type %s does not contain the distributed root", secret.Type)
	}
	token := istioToken(t, c, "default", "default", nil)
	id := certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "default"}
	signs := func(control *control) error {
		_, _, err := sign(withToken(t.Context(), token, "Kubernetes"), t, control.dial(t, roots), id, nil)
		return err
	}
	if err := errors.Join(signs(one), signs(two)); err != nil {
		t.Error(err)
	}
	leader := func() string {
		lease, err := c.Admin().CoordinationV1().Leases(meshNamespace).Get(ctx, "istio-namespace-controller-election", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	first, second := one, two
	if leader() == "control-"+two.host {
		first, second = two, one
	}
	if got := leader(); got != "control-"+first.host {
		t.Fatalf("%q leads", got)
	}
	if err := first.Stop(ctx); err != nil { // it releases the lease
		t.Fatal(err)
	}
	if err := c.CreateNamespace(ctx, "late"); err != nil {
		t.Fatal(err)
	}
	if waitRoots(t, c, "late") != roots || leader() != "control-"+second.host {
		t.Errorf("%q leads", leader())
	}
	second.Kill()
	for _, control := range []*control{first, second} {
		if err := control.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if err := signs(control); err != nil {
			t.Errorf("after a restart: %v", err)
		}
	}
}

// TestControlWithoutAPIServer kills kube-apiserver while a control plane runs:
//   - callers with a token must retry, those with a certificate are served as before;
//   - it is restarted, and callers with a token are served again;
//   - a control plane that starts while it is down waits for it.
func TestControlWithoutAPIServer(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	kubeconfig := install(t, c, "rbac.yaml")
	cp := startControl(t, kubeconfig, []string{"CA_TRUSTED_NODE_ACCOUNTS=default/agent"})
	roots := waitRoots(t, c, "default")
	id := certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "default"}
	conn := cp.dial(t, roots)
	pair, _, err := sign(withToken(t.Context(), istioToken(t, c, "default", "default", nil), "Kubernetes"), t, conn, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	fresh := istioToken(t, c, "default", "default", nil) // which is not cached
	agent := podOn(t, c, "default", "agent", "node-1")
	podOn(t, c, "default", "web", "node-1")
	agentToken := istioToken(t, c, "default", "agent", agent)
	if err := clusters(withToken(t.Context(), agentToken, "Kubernetes"), t, conn, certs.ID{Namespace: "default", ServiceAccount: "agent"}); err != nil {
		t.Fatal(err)
	}
	c.APIServer.Kill()
	_, _, err = sign(withToken(t.Context(), fresh, "Kubernetes"), t, conn, id, nil)
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a certificate for a token: got error %v", err)
	}
	if err := clusters(withToken(t.Context(), fresh, "Kubernetes"), t, conn, id); status.Code(err) != codes.Unavailable {
		t.Errorf("a stream with a token: got error %v", err)
	}
	// This token is cached; the pods on the node are not.
	web := certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "web"}
	_, _, err = sign(withToken(t.Context(), agentToken, "Kubernetes"), t, conn, web, map[string]any{"ImpersonatedIdentity": web.String()})
	if message := status.Convert(err).Message(); status.Code(err) != codes.Unavailable || strings.Contains(message, c.URL) {
		t.Errorf("a certificate of another one: got error %v", err)
	}
	own := cp.dial(t, roots, pair)
	for range 3 {
		if _, _, err := sign(t.Context(), t, own, id, nil); err != nil {
			t.Errorf("a certificate for a certificate: %v", err)
		}
		if err := clusters(t.Context(), t, own, id); err != nil {
			t.Errorf("a stream with a certificate: %v", err)
		}
	}
	early := newControl(t, kubeconfig, nil)
	if err := early.launch(); err != nil {
		t.Fatal(err)
	}
	soon(t, "a control plane that waits", func() error { return logged(early.Server, "waits for the API server") })
	if err := c.APIServer.Start(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := early.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for _, replica := range []*control{cp, early} {
		conn := replica.dial(t, roots)
		soon(t, "callers with a token", func() error {
			_, _, err := sign(withToken(t.Context(), fresh, "Kubernetes"), t, conn, id, nil)
			return err
		})
	}
}

func logged(program *Server, text string) error {
	all, err := os.ReadFile(program.Log())
	if err == nil && !strings.Contains(string(all), text) {
		err = fmt.Errorf("the log has no %q", text)
	}
	return err
}

// TestControlSigners uses signers of the cluster, which:
//   - sign requests that name none, if a default is configured, and those that name one;
//   - have roots in a file that may change, which are distributed to the mesh;
//   - issue certificates that are accepted.
func TestControlSigners(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	kubeconfig := install(t, c, "rbac.yaml", "rbac-signers.yaml")
	root, other := newIssuer(t), newIssuer(t)
	runs(t, root.play(t, c, "mesh-"))
	runs(t, other.play(t, c, "other-"))
	control := newControl(t, kubeconfig, []string{
		"EXTERNAL_CA=ISTIOD_RA_KUBERNETES_API", "K8S_SIGNER=example.com/mesh-signs", "CERT_SIGNER_DOMAIN=example.com",
	})
	file := filepath.Join(control.dir, "etc/external-ca-cert/root-cert.pem")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(issuers ...*issuer) {
		t.Helper()
		var text []byte
		for _, i := range issuers {
			text = append(text, certs.EncodeChain(i.cert)...)
		}
		if err := errors.Join(os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file)); err != nil {
			t.Fatal(err)
		}
	}
	write(root)
	if err := control.Start(testContext(t)); err != nil {
		t.Fatal(err)
	}
	roots := waitRoots(t, c, "default")
	if !strings.Contains(roots, string(certs.EncodeChain(root.cert))) || strings.Count(roots, "BEGIN") != 2 {
		t.Errorf("the mesh has these roots: %s", roots)
	}
	id := certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "default"}
	ctx := withToken(t.Context(), istioToken(t, c, "default", "default", nil), "Kubernetes")
	conn := control.dial(t, roots)
	pair, chain, err := sign(ctx, t, conn, id, nil)
	if err != nil || chain[0].CheckSignatureFrom(root.cert) != nil {
		t.Fatalf("the signer did not sign, error %v", err)
	}
	if err := clusters(t.Context(), t, control.dial(t, roots, pair), id); err != nil {
		t.Errorf("a stream with the signer's certificate: %v", err)
	}
	named := func(signer string) error {
		_, chain, err := sign(ctx, t, conn, id, map[string]any{"CertSigner": signer})
		if err == nil && chain[0].CheckSignatureFrom(other.cert) != nil {
			return errors.New("another one has signed")
		}
		return err
	}
	if err := named("other-signs"); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "root") {
		t.Errorf("a signer with an unknown root: got error %v", err)
	}
	write(root, other)
	soon(t, "another root in the file", func() error { return named("other-signs") })
	if err := named("../kubernetes.io/kube-apiserver-client"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a signer outside of the domain: got error %v", err)
	}
	soon(t, "the root in the namespaces", func() error {
		roots, err := rootsOf(t.Context(), c, "default")
		if err == nil && !strings.Contains(roots, string(certs.EncodeChain(other.cert))) {
			err = errors.New("it is not there")
		}
		return err
	})
	left, err := c.Admin().CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("%d requests are left over, error %v", len(left.Items), err)
	}
}

// TestControlPluggedIn uses a plugged-in authority:
//   - its root is distributed to the namespaces, and its key is in no Secret;
//   - the control plane starts without kube-apiserver, if no services come from it.
func TestControlPluggedIn(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	kubeconfig := install(t, c, "rbac.yaml")
	root := newIssuer(t)
	key, err := certs.MarshalKey(root.key)
	if err != nil {
		t.Fatal(err)
	}
	control := newControl(t, kubeconfig, nil, "--registries", "")
	dir := filepath.Join(control.dir, "etc/cacerts") // the default of ROOT_CA_DIR
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"ca-key.pem": key, "ca-cert.pem": certs.EncodeChain(root.cert), "root-cert.pem": certs.EncodeChain(root.cert)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx := testContext(t)
	if err := control.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if roots := waitRoots(t, c, "default"); roots != string(certs.EncodeChain(root.cert)) {
		t.Errorf("the namespace has %s", roots)
	}
	secret, err := c.Admin().CoreV1().Secrets(meshNamespace).Get(ctx, "istio-ca-secret", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	for name, value := range secret.Data {
		if strings.Contains(string(value), "PRIVATE KEY") {
			t.Errorf("%s of the Secret contains a key", name)
		}
	}
	if err := control.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	c.APIServer.Kill()
	if err := control.Start(ctx); err != nil {
		t.Error(err)
	}
}

// TestControlWithoutRights checks that a control plane that lacks a right reports it and its cure.
func TestControlWithoutRights(t *testing.T) {
	t.Parallel()
	c := shared.Cluster(t)
	kubeconfig, err := c.Kubeconfig("nobody")
	if err != nil {
		t.Fatal(err)
	}
	control := newControl(t, kubeconfig, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	err = control.Start(ctx)
	if err == nil || !strings.Contains(err.Error(), "forbidden") || !strings.Contains(err.Error(), "--stateDir") {
		t.Errorf("got error %v", err)
	}
	// With a directory, it has a root of its own and serves certificates.
	alone := startControl(t, kubeconfig, []string{"OUTRIGGER_STATE_DIR=state", "OUTRIGGER_ROOTS_CONFIGMAP=false"}, "--registries", "")
	if _, err := os.Stat(filepath.Join(alone.dir, "state/ca-key.pem")); err != nil {
		t.Error(err)
	}
}
