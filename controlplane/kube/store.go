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
	// maxWait is the maximum delay between two attempts of Wait.
	maxWait = 15 * time.Second
	// startTime is how long a newly started API server may deny access.
	startTime = 30 * time.Second
)

// AuthorityStore stores the certificate authority in the Secret istio-ca-secret, which Istio's
// control plane also uses. It requires permission to get, create and update Secrets of the
// namespace.
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
	secret, err := s.client.api.secrets(s.namespace).Get(ctx, authoritySecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", s.fault("get", err)
	}
	m := ca.Material{}
	for name, value := range secret.Data {
		if len(value) > 0 { // Istio also writes empty values
			m[name] = value
		}
	}
	return m, secret.ResourceVersion, nil
}

// Save implements ca.Store. If several replicas save based on the same version, one succeeds and
// the others get ca.ErrConflict.
func (s *AuthorityStore) Save(ctx context.Context, m ca.Material, version string) error {
	secrets := s.client.api.secrets(s.namespace)
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
	// Labels and annotations are preserved; the API server rejects the update if the version
	// changed.
	secret.ResourceVersion, secret.Data = version, m
	_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	return s.fault("update", err)
}

// Wait returns nil once the API server has answered whether the Secret exists. It retries while the
// API server is unavailable, and returns an error that would not change with a retry. A newly
// started API server may deny access for a moment.
func (s *AuthorityStore) Wait(ctx context.Context) error {
	var trouble time.Time // when the API server was last known to be unavailable
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

// passing reports whether an error may be temporary.
func passing(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // no response
	}
	code := status.Status().Code
	return code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
}

// fault adds the name of the Secret to an error. The API server's errors contain names of fields
// and versions, never data.
func (s *AuthorityStore) fault(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), what != "create" && apierrors.IsNotFound(err):
		return fmt.Errorf("%s Secret %s/%s: %w", what, s.namespace, authoritySecret, ca.ErrConflict)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s Secret %s/%s: %w: grant the control plane this right, or name a directory with --stateDir", what, s.namespace, authoritySecret, err)
	default:
		return fmt.Errorf("%s Secret %s/%s: %w", what, s.namespace, authoritySecret, err)
	}
}

var _ ca.Store = (*AuthorityStore)(nil)
