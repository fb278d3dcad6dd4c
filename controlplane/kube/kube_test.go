// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// The tests in e2e/kube use a real API server. The tests here cover what it cannot reproduce:
// outdated responses and the passage of time.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]Config{
		"no file":          {Kubeconfig: broken + "x"},
		"broken file":      {Kubeconfig: broken},
		"no configuration": {},
	} {
		if _, err := New(cfg); err == nil || !strings.HasPrefix(err.Error(), "connect to Kubernetes") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

func TestReadReview(t *testing.T) {
	t.Parallel()
	good := func() *authenticationv1.TokenReviewStatus {
		return &authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{"istio-ca"},
			User: authenticationv1.UserInfo{
				Username: "system:serviceaccount:ns:web", Groups: []string{"system:serviceaccounts", "system:authenticated"},
				Extra: map[string]authenticationv1.ExtraValue{extraPodName: {"web-1"}, extraPodUID: {"u"}, extraNodeName: {}},
			},
		}
	}
	want := authn.Review{Namespace: "ns", ServiceAccount: "web", Pod: authn.Pod{Name: "web-1", UID: "u"}}
	for name, tc := range map[string]struct {
		change    func(*authenticationv1.TokenReviewStatus)
		audiences []string
		wantErr   string
	}{
		"good":                        {func(*authenticationv1.TokenReviewStatus) {}, []string{"x", "istio-ca"}, ""},
		"no audience requested":       {func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }, nil, ""},
		"no audience in the response": {func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }, []string{"istio-ca"}, "for istio-ca"},
		"another audience":            {func(*authenticationv1.TokenReviewStatus) {}, []string{"vault"}, "for vault"},
		"error":                       {func(s *authenticationv1.TokenReviewStatus) { s.Error = "expired" }, nil, "reports: expired"},
		"not authenticated":           {func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }, nil, "does not accept"},
		"not in the group":            {func(s *authenticationv1.TokenReviewStatus) { s.User.Groups = []string{"system:authenticated"} }, nil, "not that of a service account"},
		"a user":                      {func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "jane" }, nil, "not that of a service account"},
		"no account":                  {func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:serviceaccount:ns:" }, nil, "not that of"},
		"too many parts":              {func(s *authenticationv1.TokenReviewStatus) { s.User.Username += ":x" }, nil, "not that of"},
		"no namespace and account":    {func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:serviceaccount:" }, nil, "not that of"},
	} {
		status := good()
		tc.change(status)
		got, err := readReview(status, tc.audiences)
		if tc.wantErr == "" && (err != nil || got != want) ||
			tc.wantErr != "" && (!errors.Is(err, authn.ErrUnauthenticated) || !strings.Contains(err.Error(), tc.wantErr)) {
			t.Errorf("%s: got %+v, error %v", name, got, err)
		}
	}
}

func TestAccessIsCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, server := newFake(t)
		var mu sync.Mutex
		allowed, asked, broken := true, 0, false
		server.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			if broken {
				return true, nil, errNoRoute
			}
			review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
			review.Status.Allowed = allowed
			return true, review, nil
		})
		c := newClient(Config{}, api, api)
		step := func(what string, after time.Duration, want error, questions int) {
			t.Helper()
			time.Sleep(after)
			err := c.MayReadSecrets(t.Context(), "ns", "web")
			if want == nil && err != nil || want != nil && !errors.Is(err, want) || asked != questions {
				t.Errorf("%s: got error %v after %d reviews, want %v after %d", what, err, asked, want, questions)
			}
		}
		step("first request", 0, nil, 1)
		allowed = false
		step("cached", allowedTTL-time.Second, nil, 1)
		step("expired", 2*time.Second, ErrDenied, 2)
		allowed = true
		step("denial is cached", deniedTTL-time.Second, ErrDenied, 2)
		step("denial expired", 2*time.Second, nil, 3)
		broken = true
		step("error is not cached", allowedTTL, errNoRoute, 4)
		broken = false
		step("after the error", 0, nil, 5)
	})
}

var errNoRoute = errors.New("no route")

func TestSecretsAreStripped(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{
		Name: "x", Namespace: "ns", ResourceVersion: "1", Annotations: map[string]string{"a": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{{}},
	}
	for name, tc := range map[string]struct {
		data map[string][]byte
		want string
	}{
		"credential": {map[string][]byte{"tls.crt": []byte("c"), "tls.key": []byte("k"), "password": []byte("hunter2")}, "tls.crt tls.key"},
		"password":   {map[string][]byte{"password": []byte("hunter2")}, ""},
	} {
		out, err := stripSecret(&corev1.Secret{ObjectMeta: meta, Data: tc.data})
		if err != nil {
			t.Fatal(err)
		}
		s := out.(*corev1.Secret)
		var keys []string
		for _, k := range []string{"password", "tls.crt", "tls.key"} {
			if _, ok := s.Data[k]; ok {
				keys = append(keys, k)
			}
		}
		if strings.Join(keys, " ") != tc.want || s.Annotations != nil || s.ManagedFields != nil || s.Name != "x" || s.ResourceVersion != "1" {
			t.Errorf("%s: got %v, %+v", name, keys, s.ObjectMeta)
		}
	}
}

func TestSignerNames(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ signer, domain, asked, want string }{
		"configured signer":    {"a.test/x", "", "a.test/x", "a.test/x"},
		"in the domain":        {"", "b.test", "y", "b.test/y"},
		"no domain":            {"a.test/x", "", "y", ""},
		"another domain":       {"a.test/x", "b.test", "a.test/y", ""},
		"none":                 {"a.test/x", "b.test", "", ""},
		"path traversal":       {"", "b.test", "../c.test/z", ""},
		"white space":          {"", "b.test", "y z", ""},
		"too long":             {"", "b.test", strings.Repeat("y", 201), ""},
		"configured at domain": {"b.test/x", "b.test", "b.test/x", "b.test/x"},
	} {
		r := &RegistrationAuthority{cfg: RegistrationConfig{Signer: tc.signer, Domain: tc.domain}}
		got, err := r.signer(tc.asked)
		if got != tc.want || (err != nil) != (tc.want == "") || err != nil && !errors.Is(err, ca.ErrRequest) {
			t.Errorf("%s: got %q, error %v; want %q", name, got, err, tc.want)
		}
	}
	api, _ := newFake(t)
	c := newClient(Config{}, api, api)
	for name, cfg := range map[string]RegistrationConfig{
		"no client": {Signer: "a.test/x"},
		"no signer": {Client: c},
		"no domain": {Client: c, Signer: "x"},
		"no name":   {Client: c, Signer: "a.test/"},
	} {
		if _, err := NewRegistrationAuthority(cfg); err == nil {
			t.Errorf("%s: NewRegistrationAuthority accepted the configuration", name)
		}
	}
}
