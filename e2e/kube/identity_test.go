// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

// controlPlane is the user of the tests of controlplane/kube. It has only the rights that the
// package documents.
const controlPlane = "outrigger-control"

const controlPlaneRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: outrigger-control}
rules:
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
- {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
- {apiGroups: [""], resources: [pods], verbs: [get, list]}
- {apiGroups: [""], resources: [namespaces], verbs: [list, watch]}
- {apiGroups: [""], resources: [configmaps], verbs: [list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [secrets], verbs: [get, list, watch, create, update]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}
- {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests], verbs: [create, get, watch, delete]}
- {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests/approval], verbs: [update]}
- {apiGroups: [certificates.k8s.io], resources: [signers], resourceNames: [example.com/*], verbs: [approve]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: outrigger-control}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: outrigger-control}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: outrigger-control}]
`

var silent = slog.New(slog.DiscardHandler)

// connect returns a client with these rights.
func connect(t *testing.T, c *Cluster) *kube.Client {
	t.Helper()
	if err := c.Apply(t.Context(), []byte(controlPlaneRights)); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := c.Kubeconfig(controlPlane)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.New(kube.Config{Kubeconfig: kubeconfig, Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// runs runs a component until the end of the test.
func runs(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// soon waits until the check returns no error.
func soon(t *testing.T, what string, is func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = is(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func authenticator(t *testing.T, client *kube.Client) *authn.Kubernetes {
	t.Helper()
	k, err := authn.NewKubernetes(authn.KubernetesConfig{
		TrustDomain: "cluster.local", Reviewer: func(string) authn.Reviewer { return client },
		PositiveTTL: time.Millisecond, NegativeTTL: time.Millisecond, Logger: silent,
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func bearer(t *testing.T, token string) context.Context {
	t.Helper()
	return metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token))
}

// podOn creates a scheduled Pod with the name of its account.
func podOn(t *testing.T, c *Cluster, namespace, account, node string) *corev1.Pod {
	t.Helper()
	if err := c.CreateServiceAccount(t.Context(), namespace, account); err != nil {
		t.Fatal(err)
	}
	pod, err := c.Admin().CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		Spec: corev1.PodSpec{
			ServiceAccountName: account, NodeName: node,
			Containers: []corev1.Container{{Name: "application", Image: "registry.invalid/application:1"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func deletePod(t *testing.T, c *Cluster, pod *corev1.Pod) {
	t.Helper()
	now := int64(0)
	if err := c.Admin().CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
}

// TestTokenReview reviews tokens that kube-apiserver issued:
//   - with the right audience: the identity, the pod and its node are known;
//   - with another audience, signed by another issuer, not a token: refused;
//   - of a deleted pod: refused within seconds.
func TestTokenReview(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	k := authenticator(t, connect(t, c))
	pod := podOn(t, c, namespace, "web", "node-1")
	token := func(o TokenOptions) string {
		t.Helper()
		token, err := c.Token(t.Context(), namespace, "web", o)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	bound := token(TokenOptions{Audiences: []string{"istio-ca"}, Pod: pod})
	caller, err := k.Authenticate(bearer(t, bound))
	want := authn.Caller{
		ID:     certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "web"},
		Method: authn.MethodKubernetes, Pod: authn.Pod{Name: "web", UID: string(pod.UID), Node: "node-1"},
	}
	if err != nil || *caller != want {
		t.Fatalf("got %+v, error %v, want %+v", caller, err, want)
	}
	if caller, err := k.Authenticate(bearer(t, token(TokenOptions{Audiences: []string{"other", "istio-ca"}}))); err != nil || caller.Pod != (authn.Pod{}) {
		t.Errorf("a token without a pod: got %+v, error %v", caller, err)
	}
	head, rest, _ := strings.Cut(bound, ".")
	payload, _, _ := strings.Cut(rest, ".")
	for name, bad := range map[string]string{
		"another audience":     token(TokenOptions{Audiences: []string{"vault"}}),
		"of the API server":    token(TokenOptions{}),
		"changed signature":    head + "." + payload + "." + strings.Repeat("A", 342),
		"without its last bit": bound[:len(bound)-4],
	} {
		_, err := k.Authenticate(bearer(t, bad))
		if !errors.Is(err, authn.ErrUnauthenticated) || errors.Is(err, authn.ErrUnavailable) || strings.Contains(err.Error(), payload[:16]) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	// The server refuses tokens that the precheck of authn accepts by mistake.
	if _, err := connect(t, c).Review(t.Context(), token(TokenOptions{Audiences: []string{"vault"}}), []string{"istio-ca"}); !errors.Is(err, authn.ErrUnauthenticated) {
		t.Errorf("another audience: got error %v", err)
	}
	deletePod(t, c, pod)
	soon(t, "the token of a deleted pod", func() error {
		_, err := k.Authenticate(bearer(t, bound))
		if err == nil {
			return errors.New("it is accepted")
		}
		return nil
	})
}

func TestMayReadSecrets(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	client := connect(t, c)
	if err := c.Apply(t.Context(), []byte(strings.ReplaceAll(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: NS}
rules: [{apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: gateway, namespace: NS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: gateway, namespace: NS}]
---
apiVersion: v1
kind: Namespace
metadata: {name: NS-all}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: NS-all}
rules: [{apiGroups: [""], resources: [secrets], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: all, namespace: NS-all}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:serviceaccounts:NS-all"}]
`, "NS", namespace))); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		namespace, account string
		allowed            bool
	}{
		"by its role":           {namespace, "gateway", true},
		"without a role":        {namespace, "web", false},
		"same name, other home": {namespace + "-all", "gateway", true}, // by its group
		"by the group":          {namespace + "-all", "web", true},
		"unknown":               {"nowhere", "gateway", false},
	} {
		// RBAC applies a new binding with a delay.
		soon(t, name, func() error {
			err := connect(t, c).MayReadSecrets(t.Context(), tc.namespace, tc.account)
			if tc.allowed {
				return err
			}
			if !errors.Is(err, kube.ErrDenied) {
				return errors.Join(errors.New("it is allowed"), err)
			}
			return nil
		})
	}
	if err := client.MayReadSecrets(t.Context(), namespace, "gateway"); err != nil {
		t.Fatal(err)
	}
	// The answer is cached: it stays after the role is deleted.
	if err := c.Admin().RbacV1().RoleBindings(namespace).Delete(t.Context(), "gateway", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.MayReadSecrets(t.Context(), namespace, "gateway"); err != nil {
		t.Errorf("the answer is not remembered: %v", err)
	}
}

// TestImpersonation requests certificates of pods as an agent of a node:
//   - a trusted account, for a pod on its node: yes;
//   - for a pod on another node, or a deleted one: no;
//   - another account, or a token that is not bound to a pod: no.
func TestImpersonation(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	client := connect(t, c)
	k := authenticator(t, client)
	nodes, err := kube.NewNodes(kube.NodesConfig{Client: client, Trusted: []string{namespace + "/agent"}, TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	agent := podOn(t, c, namespace, "agent", namespace+"-node-1")
	here := podOn(t, c, namespace, "here", namespace+"-node-1")
	podOn(t, c, namespace, "there", namespace+"-node-2")
	caller := func(account string, o TokenOptions) *authn.Caller {
		t.Helper()
		o.Audiences = []string{"istio-ca"}
		token, err := c.Token(t.Context(), namespace, account, o)
		if err != nil {
			t.Fatal(err)
		}
		caller, err := k.Authenticate(bearer(t, token))
		if err != nil {
			t.Fatal(err)
		}
		return caller
	}
	byAgent := caller("agent", TokenOptions{Pod: agent})
	older := *byAgent
	older.Pod.Node = "" // the claims of an API server before 1.30
	moved := *byAgent
	moved.Pod.Node = namespace + "-node-2"
	reborn := older
	reborn.Pod.UID = "another"
	byCertificate := *byAgent
	byCertificate.Method = authn.MethodClientCertificate
	for name, tc := range map[string]struct {
		caller *authn.Caller
		id     certs.ID
		want   string
	}{
		"on its node":              {byAgent, certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "here"}, ""},
		"older API server":         {&older, certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "here"}, ""},
		"on another node":          {byAgent, certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "there"}, "no pod of"},
		"in another namespace":     {byAgent, certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "here"}, "no pod of"},
		"of another trust domain":  {byAgent, certs.ID{TrustDomain: "other", Namespace: namespace, ServiceAccount: "here"}, "trust domain"},
		"by another account":       {caller("here", TokenOptions{Pod: here}), certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "here"}, "not a trusted node account"},
		"token without a pod":      {caller("agent", TokenOptions{}), certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "here"}, "not bound to a pod"},
		"by a certificate":         {&byCertificate, certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "here"}, "only a token"},
		"token of another pod":     {&reborn, certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "here"}, "was deleted or replaced"},
		"token names another node": {&moved, certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "there"}, "was deleted or replaced"},
	} {
		err := nodes.Authorize(t.Context(), tc.caller, tc.id)
		if tc.want == "" && err != nil || tc.want != "" && (!errors.Is(err, kube.ErrNotOnNode) || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got error %v, want one with %q", name, err, tc.want)
		}
	}
	// A pod that has just started counts within a second.
	podOn(t, c, namespace, "late", namespace+"-node-1")
	soon(t, "a new pod", func() error {
		return nodes.Authorize(t.Context(), byAgent, certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "late"})
	})
	deletePod(t, c, here)
	soon(t, "a deleted pod", func() error {
		if nodes.Authorize(t.Context(), byAgent, certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "here"}) == nil {
			return errors.New("it counts")
		}
		return nil
	})
}
