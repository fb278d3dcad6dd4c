// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
)

const (
	accountPrefix = "system:serviceaccount:"
	accountsGroup = "system:serviceaccounts"
	// Extra fields with the pod of a token; the node only since Kubernetes 1.30.
	extraPodName  = "authentication.kubernetes.io/pod-name"
	extraPodUID   = "authentication.kubernetes.io/pod-uid"
	extraNodeName = "authentication.kubernetes.io/node-name"
)

// Review implements authn.Reviewer with a TokenReview. It requires permission to create
// tokenreviews.authentication.k8s.io.
func (c *Client) Review(ctx context.Context, token string, audiences []string) (authn.Review, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}
	answer, err := c.reviews.tokens.Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return authn.Review{}, fmt.Errorf("review a token: %w", err)
	}
	return readReview(&answer.Status, audiences)
}

// readReview converts the status of a TokenReview to an identity.
func readReview(status *authenticationv1.TokenReviewStatus, audiences []string) (authn.Review, error) {
	none := authn.Review{}
	if status.Error != "" {
		return none, authn.Refuse("the API server reports: " + status.Error)
	}
	if !status.Authenticated {
		return none, authn.Refuse("the API server does not accept the token")
	}
	// A server that does not support audiences returns none.
	if len(audiences) > 0 && !slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(status.Audiences, a) }) {
		return none, authn.Refuse("the API server did not accept the token for " + strings.Join(audiences, ", "))
	}
	if !slices.Contains(status.User.Groups, accountsGroup) {
		return none, authn.Refuse("the token is not that of a service account")
	}
	rest, ok := strings.CutPrefix(status.User.Username, accountPrefix)
	namespace, account, both := strings.Cut(rest, ":")
	if !ok || !both || namespace == "" || account == "" || strings.Contains(account, ":") {
		return none, authn.Refuse("the name of the token's user is not that of a service account")
	}
	first := func(key string) string {
		if values := status.User.Extra[key]; len(values) > 0 {
			return values[0]
		}
		return ""
	}
	return authn.Review{
		Namespace: namespace, ServiceAccount: account,
		Pod: authn.Pod{Name: first(extraPodName), UID: first(extraPodUID), Node: first(extraNodeName)},
	}, nil
}

var _ authn.Reviewer = (*Client)(nil)
