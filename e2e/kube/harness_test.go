// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var (
	shared      Shared
	definitions seeded // of Istio and of the Gateway API
)

func TestMain(m *testing.M) {
	if os.Getenv(orphanEnv) != "" {
		os.Exit(orphan(context.Background()))
	}
	code := shared.Main(m)
	definitions.remove()
	os.Exit(code)
}

func TestVersion(t *testing.T) {
	t.Parallel()
	c := shared.Cluster(t)
	version, err := c.Admin().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.GitVersion != c.Version || !strings.HasPrefix(c.Version, "v1.36.") || version.Major != "1" || version.Minor != "36" {
		t.Errorf("kube-apiserver reports %s (%s.%s), built was %s, want a v1.36", version.GitVersion, version.Major, version.Minor, c.Version)
	}
}

func TestObjectsAndWatch(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	ctx := testContext(t)
	maps := c.Admin().CoreV1().ConfigMaps(namespace)
	events, err := maps.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Data: map[string]string{"k": "1"}}
	if object, err = maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	object.Data["k"] = "2"
	if _, err = maps.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err = maps.Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		select {
		case e := <-events.ResultChan():
			if e.Type != want {
				t.Errorf("event %d is %s %v, want %s", i, e.Type, e.Object, want)
			}
		case <-ctx.Done():
			t.Fatalf("event %d, %s, did not come", i, want)
		}
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	ctx := testContext(t)
	pod, err := c.CreatePod(ctx, namespace, "application", "default")
	if err != nil {
		t.Fatal(err)
	}
	token, err := c.Token(ctx, namespace, "default", TokenOptions{Audiences: []string{"istio-ca"}, Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	review := func(audience string) authenticationv1.TokenReviewStatus {
		t.Helper()
		r, err := c.Admin().AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status
	}
	status := review("istio-ca")
	if want := "system:serviceaccount:" + namespace + ":default"; !status.Authenticated || status.User.Username != want {
		t.Errorf("TokenReview says %+v, want the user %s", status, want)
	}
	if got := status.User.Extra["authentication.kubernetes.io/pod-name"]; !slices.Equal(got, []string{"application"}) {
		t.Errorf("the token is bound to the pod %q, want application", got)
	}
	if status := review("another"); status.Authenticated {
		t.Errorf("a token for another audience is valid: %+v", status)
	}
	if err := c.Admin().CoreV1().Pods(namespace).Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	// kube-apiserver caches a valid token for 10 s.
	eventually(t, ctx, "the token ends with its pod", func() bool { return !review("istio-ca").Authenticated })
}

func TestAccess(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	ctx := testContext(t)
	list := func(config *rest.Config) error {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
		return err
	}
	if err := list(&rest.Config{Host: c.URL, TLSClientConfig: rest.TLSClientConfig{CAData: c.CA}}); !apierrors.IsUnauthorized(err) {
		t.Errorf("without an identity: %v, want unauthorized", err)
	}
	if err := list(c.TokenConfig("a.b.c")); !apierrors.IsUnauthorized(err) {
		t.Errorf("with a wrong token: %v, want unauthorized", err)
	}
	path, err := c.Kubeconfig("jane", "readers-of-"+namespace)
	if err != nil {
		t.Fatal(err)
	}
	jane, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := list(jane); !apierrors.IsForbidden(err) {
		t.Errorf("jane, without a role: %v, want forbidden", err)
	}
	if _, err := c.Admin().RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Admin().RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "readers"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "readers-of-" + namespace}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "the role holds", func() bool { return list(jane) == nil })
	answer, err := c.Admin().AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "jane", Groups: []string{"readers-of-" + namespace},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "list", Resource: "secrets"},
		},
	}, metav1.CreateOptions{})
	if err != nil || !answer.Status.Allowed {
		t.Errorf("SubjectAccessReview of jane: %+v, %v, want allowed", answer.Status, err)
	}
}

func TestServiceAccountToken(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	ctx := testContext(t)
	token, err := c.Token(ctx, namespace, "default", TokenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/token"
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := c.TokenKubeconfig(file)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if want := "system:serviceaccount:" + namespace + ":default"; err != nil || who.Status.UserInfo.Username != want {
		t.Errorf("who am I: %+v, %v, want %s", who, err, want)
	}
	body, err := client.Discovery().RESTClient().Get().AbsPath("/.well-known/openid-configuration").DoRaw(ctx)
	if err != nil || !strings.Contains(string(body), `"issuer":"`+c.Issuer+`"`) {
		t.Errorf("the issuer's document: %s, %v, want the issuer %s", body, err, c.Issuer)
	}
}

func TestApplyCRDs(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	ctx := testContext(t)
	for range 2 { // again, without changes
		if err := c.ApplyCRDs(ctx, "testdata/crds"); err != nil {
			t.Fatal(err)
		}
	}
	widget := func(size string) []byte {
		return []byte("apiVersion: test.outrigger.dev/v1\nkind: Widget\nmetadata: {name: w, namespace: " + namespace + "}\nspec: {size: " + size + "}\n")
	}
	if err := c.Apply(ctx, slices.Concat(widget("1"), []byte("---\n"), widget("2"))); err != nil {
		t.Error(err)
	}
	if err := c.Apply(ctx, widget("0")); !apierrors.IsInvalid(err) {
		t.Errorf("a widget of size 0: %v, want invalid", err)
	}
	if err := c.ApplyCRDs(ctx, t.TempDir()); err == nil {
		t.Error("a folder without definitions is applied")
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until yes returns true.
func eventually(t *testing.T, ctx context.Context, what string, yes func() bool) {
	t.Helper()
	for !yes() {
		select {
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		case <-time.After(5 * probeEvery):
		}
	}
}
