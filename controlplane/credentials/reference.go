// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// The schemes of the names that proxies request.
const (
	// SchemeKubernetes names a Secret in the cluster of the proxy.
	SchemeKubernetes = "kubernetes"
	// SchemeGateway names a Secret in the cluster that holds the configuration.
	SchemeGateway = "kubernetes-gateway"
	// SchemeConfigMap names the roots in a ConfigMap of that cluster.
	SchemeConfigMap = "configmap"

	rootsSuffix = "-cacert"
	maxName     = 253 // maximum length of an object name in bytes
)

// Reference is a parsed resource name.
type Reference struct {
	Scheme    string // one of the constants above
	Namespace string
	Name      string // includes the suffix -cacert if roots of a Secret are requested
}

// ParseReference parses kubernetes://[namespace/]name, kubernetes-gateway://namespace/name,
// configmap://namespace/name-cacert, or a bare name, which means kubernetes://name. The default
// namespace is that of the proxy.
func ParseReference(resource, proxyNamespace string) (Reference, error) {
	ref := Reference{Scheme: SchemeKubernetes, Namespace: proxyNamespace}
	rest := resource
	if scheme, after, ok := strings.Cut(resource, "://"); ok {
		ref.Scheme, rest = scheme, after
	}
	namespace, name, both := strings.Cut(rest, "/")
	switch ref.Scheme {
	case SchemeKubernetes:
	case SchemeGateway, SchemeConfigMap:
		if !both {
			return Reference{}, fmt.Errorf("credential %q: write %s://<namespace>/<name>", clip.Cut(resource, maxText), ref.Scheme)
		}
	default:
		return Reference{}, fmt.Errorf("credential %q: the scheme is not one of kubernetes, kubernetes-gateway and configmap", clip.Cut(resource, maxText))
	}
	if both {
		ref.Namespace = namespace
	} else {
		name = rest
	}
	ref.Name = name
	if ref.Scheme == SchemeConfigMap {
		ref.Name = strings.TrimSuffix(name, rootsSuffix)
	}
	if !isName(ref.Namespace) || !isName(ref.Name) {
		return Reference{}, fmt.Errorf("credential %q: write kubernetes://[<namespace>/]<name>, with names of a-z, 0-9, '-' and '.'", clip.Cut(resource, maxText))
	}
	return ref, nil
}

// isName reports whether s is a valid object name.
func isName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i, c := range []byte(s) {
		alphanumeric := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alphanumeric && (c != '-' && c != '.' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return true
}

// IsRoots reports whether the reference denotes roots, and not a certificate with key.
func (r Reference) IsRoots() bool {
	return r.Scheme == SchemeConfigMap || len(r.Name) > len(rootsSuffix) && strings.HasSuffix(r.Name, rootsSuffix)
}

// CheckNamespace returns an error for a reference to a namespace other than that of the proxy,
// unless it is granted. A nil granted function grants nothing.
func (r Reference) CheckNamespace(proxyNamespace string, granted func(Reference) bool) error {
	if r.Namespace == proxyNamespace || granted != nil && granted(r) {
		return nil
	}
	return fmt.Errorf("credential %s/%s: a proxy of namespace %s may only use those of its own namespace; move the Secret there, or allow the reference",
		r.Namespace, r.Name, proxyNamespace)
}

// Affects reports whether a change of a Secret affects what the reference denotes.
func (r Reference) Affects(namespace, name string) bool {
	return r.Namespace == namespace && (r.Name == name || r.IsRoots() && strings.TrimSuffix(r.Name, rootsSuffix) == name)
}

// maxText is the maximum number of bytes of a peer's text that an error quotes.
const maxText = 300
