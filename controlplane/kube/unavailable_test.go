// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
)

// answering returns a client whose API server answers each matching request with the result of
// answer.
func answering(t testing.TB, verb, resource string, answer func() error) *Client {
	api, server := newFake(t)
	server.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		err := answer()
		return err != nil, nil, err
	})
	return newClient(Config{}, api, api)
}

// TestUnavailableAPIServer checks that if a caller cannot be authorized because of the API server,
// the error asks for a retry and contains no details.
func TestUnavailableAPIServer(t *testing.T) {
	t.Parallel()
	broken := func() error { return errors.New("dial tcp 10.0.0.1:443: no route") }
	caller := authn.Caller{
		ID: certs.ID{TrustDomain: "cluster.local", Namespace: "ns", ServiceAccount: "agent"}, Method: authn.MethodKubernetes,
		Pod: authn.Pod{Name: "agent-1", UID: "u", Node: "n"},
	}
	older := caller
	older.Pod.Node = ""
	for verb, c := range map[string]authn.Caller{"list": caller, "get": older} {
		nodes, err := NewNodes(NodesConfig{Client: answering(t, verb, "pods", broken), Trusted: []string{"ns/agent"}, TrustDomain: "cluster.local"})
		if err != nil {
			t.Fatal(err)
		}
		err = nodes.Authorize(t.Context(), &c, certs.ID{TrustDomain: "cluster.local", Namespace: "ns", ServiceAccount: "web"})
		if !errors.Is(err, authn.ErrUnavailable) || errors.Is(err, ErrNotOnNode) || strings.Contains(err.Error(), "10.0.0.1") {
			t.Errorf("%s: got error %v, want ErrUnavailable without details", verb, err)
		}
	}
}

// TestStoreWaits checks that the store waits for an API server that is unreachable, fails or has
// just started, and returns permanent errors immediately.
func TestStoreWaits(t *testing.T) {
	t.Parallel()
	secrets := corev1.Resource("secrets")
	gone, busy := errors.New("connection refused"), apierrors.NewTooManyRequests("later", 1)
	broken, no := apierrors.NewInternalError(errors.New("etcd")), apierrors.NewForbidden(secrets, authoritySecret, errors.New("no"))
	for name, tc := range map[string]struct {
		answers []error // the last one repeats
		want    error
		after   time.Duration
	}{
		"no Secret":                             {answers: []error{apierrors.NewNotFound(secrets, authoritySecret)}},
		"permanent error":                       {answers: []error{no}, want: no},
		"becomes available":                     {answers: []error{gone, busy, broken, nil}, after: 7 * time.Second},
		"becomes available, forbidden at first": {answers: []error{gone, no, no, nil}, after: 7 * time.Second},
		"becomes available, stays forbidden":    {answers: []error{gone, no}, want: no, after: 31 * time.Second},
		"never becomes available":               {answers: []error{gone}, want: context.DeadlineExceeded, after: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := 0
				store, err := NewAuthorityStore(answering(t, "get", "secrets", func() error {
					n++
					return tc.answers[min(n, len(tc.answers))-1]
				}), "istio-system")
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				begin := time.Now()
				if err := store.Wait(ctx); !errors.Is(err, tc.want) {
					t.Errorf("Wait() = %v, want %v", err, tc.want)
				}
				if took := time.Since(begin); took < tc.after || took > tc.after+2*time.Minute {
					t.Errorf("Wait took %s, want about %s", took, tc.after)
				}
			})
		})
	}
}
