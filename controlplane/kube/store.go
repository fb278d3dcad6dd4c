// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

const (
	authoritySecret = "istio-ca-secret"
	authorityType   = corev1.SecretType("istio.io/ca-root")
	// maxWait is the longest pause between two attempts of Wait.
	maxWait = 15 * time.Second
	// startTime is how long an API server that has just started may refuse.
	startTime = 30 * time.Second
)

// AuthorityStore keeps the certificate authority in the Secret istio-ca-secret,
// which Istio's control plane reads and writes, too. It needs the rights to get,
// create and update Secrets of that namespace.
type AuthorityStore struct {
	client    *Client
	namespace string
}

// NewAuthorityStore returns the ca.Store of a namespace.
func NewAuthorityStore(client *Client, namespace string) (*AuthorityStore, error) {
	if client == nil || namespace == "" {
		return nil, errors.New("store of the certificate authority: it needs a cluster and a namespace")
	}
	return &AuthorityStore{client: client, namespace: namespace}, nil
}

// Load implements ca.Store. The version is the resource version of the Secret.
func (s *AuthorityStore) Load(ctx context.Context) (ca.Material, string, error) {
	secret, err := s.client.api.CoreV1().Secrets(s.namespace).Get(ctx, authoritySecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", s.fault("get", err)
	}
	m := ca.Material{}
	for name, value := range secret.Data {
		if len(value) > 0 { // Istio writes empty ones beside its own
			m[name] = value
		}
	}
	return m, secret.ResourceVersion, nil
}

// Save implements ca.Store: of several replicas that save the same version, one
// succeeds and the others get ca.ErrConflict.
func (s *AuthorityStore) Save(ctx context.Context, m ca.Material, version string) error {
	secrets := s.client.api.CoreV1().Secrets(s.namespace)
	if version == "" {
		_, err := secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: authoritySecret, Namespace: s.namespace},
			Type:       authorityType,
			Data:       m,
		}, metav1.CreateOptions{})
		return s.fault("create", err)
	}
	secret, err := secrets.Get(ctx, authoritySecret, metav1.GetOptions{})
	if err != nil {
		return s.fault("get", err)
	}
	// Labels and annotations of others stay; what is written is checked by the
	// API server against this version.
	secret.ResourceVersion, secret.Data = version, m
	_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	return s.fault("update", err)
}

// Wait returns when the API server has answered whether the Secret is there. It
// waits for one that is not there yet or has trouble; an answer that will be the
// same next time is an error. An API server that has just started forbids for a
// moment what it will allow.
func (s *AuthorityStore) Wait(ctx context.Context) error {
	var trouble time.Time // when the API server was last known not to serve
	waits := backoff.NewExponentialBackOff(backoff.WithInitialInterval(time.Second), backoff.WithMaxInterval(maxWait),
		backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0), backoff.WithMaxElapsedTime(0))
	for {
		_, _, err := s.Load(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case passing(err):
			trouble = time.Now()
		case time.Since(trouble) > startTime:
			return err
		}
		wait := waits.NextBackOff()
		s.client.log.Warn("the certificate authority waits for the API server", "duration", wait, "err", err)
		pause(ctx, wait)
	}
}

// passing reports whether an error may be another one a moment later.
func passing(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // nobody has answered
	}
	code := status.Status().Code
	return code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
}

// fault names the Secret in an error. The API server's errors name fields and
// versions, never data.
func (s *AuthorityStore) fault(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), what != "create" && apierrors.IsNotFound(err):
		return fmt.Errorf("%s Secret %s/%s: %w", what, s.namespace, authoritySecret, ca.ErrConflict)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s Secret %s/%s: %w: give the control plane this right, or name a directory with --stateDir", what, s.namespace, authoritySecret, err)
	default:
		return fmt.Errorf("%s Secret %s/%s: %w", what, s.namespace, authoritySecret, err)
	}
}

var _ ca.Store = (*AuthorityStore)(nil)
