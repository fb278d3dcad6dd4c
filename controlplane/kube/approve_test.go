// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

// TestOtherApproverDecides checks that another approver of the cluster may decide first. The API
// server would reject a second condition of the same type, and the approval of a denied request.
func TestOtherApproverDecides(t *testing.T) {
	t.Parallel()
	for kind, others := range map[certificatesv1.RequestConditionType]int{
		certificatesv1.CertificateApproved: 1,
		certificatesv1.CertificateDenied:   1,
		"Other":                            2, // approval is retried
	} {
		object := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "csr-workload-1"}}
		changed := object.DeepCopy()
		changed.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: kind, Status: corev1.ConditionTrue}}
		api, server := newFake(t, changed)
		updates := 0
		server.PrependReactor("update", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
			if updates++; updates == 1 {
				return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "certificatesigningrequests"}, object.Name, errors.New("changed"))
			}
			return false, nil, nil
		})
		r, err := NewRegistrationAuthority(RegistrationConfig{Client: newClient(Config{}, api, api), Signer: "example.com/x", Approve: true})
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.approve(t.Context(), object.DeepCopy(), "spiffe://cluster.local/ns/default/sa/web")
		if err != nil || updates != others || got.Status.Conditions[0].Type != kind {
			t.Errorf("%s: %d updates, want %d; error %v, conditions %v", kind, updates, others, err, got.Status.Conditions)
		}
	}
}

// TestSigningHasOwnLimit uses up the rate limit of certificate requests and checks that other
// requests are not limited.
func TestSigningHasOwnLimit(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "config")
	text := `{"clusters":[{"name":"c","cluster":{"server":"` + server.URL + `"}}],"contexts":[{"name":"x","context":{"cluster":"c"}}],"current-context":"x"}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Kubeconfig: kubeconfig, QPS: 0.001, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for i, want := range []bool{true, false} { // whether the request is sent
		_, err := c.signing.requests.Get(ctx, "x", metav1.GetOptions{})
		if apierrors.IsNotFound(err) != want {
			t.Errorf("certificate request %d: got error %v", i+1, err)
		}
	}
	if _, err := c.api.leases("ns").Get(ctx, "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("getting a lease: got error %v, want not found", err)
	}
	if _, err := c.api.secrets("ns").Get(ctx, "x", metav1.GetOptions{}); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("getting a Secret: got error %v, want that it shares the limit", err)
	}
}
