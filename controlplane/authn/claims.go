// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"strings"

	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/outrigger-mesh/outrigger/certs"
)

// claims are the claims of a token.
type claims struct {
	jwt.Claims
	// Kubernetes is set in tokens of an API server.
	Kubernetes struct {
		Namespace      string       `json:"namespace"`
		ServiceAccount boundObject  `json:"serviceaccount"`
		Pod            *boundObject `json:"pod"`
		Node           *boundObject `json:"node"`
	} `json:"kubernetes.io"`
}

// boundObject is an object that a token is bound to.
type boundObject struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// id returns the identity in a token. If the token contains it twice, both must be equal.
func (c *claims) id(trustDomain string) (certs.ID, error) {
	namespace, account, ok := splitSubject(c.Subject)
	id := certs.ID{TrustDomain: trustDomain, Namespace: namespace, ServiceAccount: account}
	if !ok || id.Validate() != nil {
		return certs.ID{}, refuse("jwt: the subject is not of the form %s<namespace>:<service account>", subjectPrefix)
	}
	k := c.Kubernetes
	if k.Namespace != "" && k.Namespace != namespace || k.ServiceAccount.Name != "" && k.ServiceAccount.Name != account {
		return certs.ID{}, refuse("jwt: the subject and the claim kubernetes.io name different service accounts")
	}
	return id, nil
}

// pod returns the pod that the token is bound to.
func (c *claims) pod() Pod {
	var p Pod
	if c.Kubernetes.Pod != nil {
		p.Name, p.UID = c.Kubernetes.Pod.Name, c.Kubernetes.Pod.UID
	}
	if c.Kubernetes.Node != nil {
		p.Node = c.Kubernetes.Node.Name
	}
	return p
}

// splitSubject parses system:serviceaccount:<namespace>:<service account>.
func splitSubject(subject string) (namespace, account string, ok bool) {
	rest, ok := strings.CutPrefix(subject, subjectPrefix)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ":")
}
