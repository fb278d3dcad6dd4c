// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	allowedTTL = 5 * time.Minute
	deniedTTL  = time.Minute
	// maxAccess is the maximum number of cached answers.
	maxAccess     = 10_000
	accessTimeout = 5 * time.Second
)

// ErrDenied is wrapped by the error of MayReadSecrets if access is denied.
var ErrDenied = errors.New("not allowed to read Secrets")

// account is a service account.
type account struct{ namespace, name string }

// accessCache caches answers of the API server.
type accessCache struct {
	mu      sync.Mutex // guards answers
	answers map[account]answer
}

type answer struct {
	allowed bool
	reason  string
	until   time.Time
}

func newAccessCache() *accessCache { return &accessCache{answers: map[account]answer{}} }

func (c *accessCache) get(a account, now time.Time) (answer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.answers[a]
	return found, ok && now.Before(found.until)
}

func (c *accessCache) put(a account, found answer, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.answers) >= maxAccess {
		for k, v := range c.answers {
			if !now.Before(v.until) {
				delete(c.answers, k)
			}
		}
	}
	if len(c.answers) >= maxAccess {
		clear(c.answers) // cheaper than tracking which entries to evict
	}
	c.answers[a] = found
}

// MayReadSecrets checks with a SubjectAccessReview whether a service account may list the Secrets
// of its namespace. It returns nil if so, and an error that wraps ErrDenied if not. A positive
// answer is cached for 5 minutes, a negative one for 1 minute. It requires permission to create
// subjectaccessreviews.authorization.k8s.io.
func (c *Client) MayReadSecrets(ctx context.Context, namespace, serviceAccount string) error {
	who := account{namespace, serviceAccount}
	found, ok := c.access.get(who, time.Now())
	if !ok {
		var err error
		if found, err = c.reviewAccess(ctx, who); err != nil {
			return fmt.Errorf("check whether %s/%s may read Secrets: %w", namespace, serviceAccount, err)
		}
		c.access.put(who, found, time.Now())
	}
	if found.allowed {
		return nil
	}
	why := ""
	if found.reason != "" {
		why = ": " + found.reason
	}
	return fmt.Errorf("service account %s/%s: %w; let a Role of its namespace allow it to list secrets%s", namespace, serviceAccount, ErrDenied, why)
}

func (c *Client) reviewAccess(ctx context.Context, who account) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, accessTimeout)
	defer cancel()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: accountPrefix + who.namespace + ":" + who.name,
		// The groups of every service account.
		Groups:             []string{accountsGroup, accountsGroup + ":" + who.namespace, "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: who.namespace, Verb: "list", Resource: "secrets"},
	}}
	out, err := c.reviews.access.Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return answer{}, err
	}
	ttl := deniedTTL
	if out.Status.Allowed {
		ttl = allowedTTL
	}
	return answer{allowed: out.Status.Allowed, reason: out.Status.Reason, until: time.Now().Add(ttl)}, nil
}
