// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
)

const (
	// nodeTTL is how long the pods of a node are cached. If a pod is not found, the pods are listed
	// again if the list is older than nodeRetry.
	nodeTTL   = 5 * time.Second
	nodeRetry = time.Second
	maxNodes  = 10_000
)

// ErrNotOnNode is wrapped by the error of Authorize if the request is denied.
var ErrNotOnNode = errors.New("impersonation refused")

// NodesConfig is the configuration of Nodes.
type NodesConfig struct {
	Client *Client
	// Trusted are the accounts, as namespace/name, whose pods may request certificates for other
	// pods on their node.
	Trusted     []string
	TrustDomain string // trust domain of the issued identities
}

// Nodes decides whether a node agent may act for a pod on its node.
//
// It lists the pods of one node on demand and caches them for a few seconds. An informer for all
// pods would use memory for each pod of the cluster, and would not know a pod that started a moment
// ago. It requires permission to get and list pods in all namespaces.
type Nodes struct {
	cfg     NodesConfig
	trusted map[string]bool

	mu    sync.Mutex // guards nodes
	nodes map[string]nodePods
}

// nodePods are the running pods of a node at the time of the list.
type nodePods struct {
	listed time.Time
	pods   []podOfNode
}

type podOfNode struct {
	account account
	name    string
	uid     string
}

// NewNodes returns a Nodes. It returns an error if the configuration is invalid.
func NewNodes(cfg NodesConfig) (*Nodes, error) {
	if cfg.Client == nil {
		return nil, errors.New("impersonation: there is no cluster to query")
	}
	n := &Nodes{cfg: cfg, trusted: map[string]bool{}, nodes: map[string]nodePods{}}
	for _, t := range cfg.Trusted {
		namespace, name, ok := strings.Cut(strings.TrimSpace(t), "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("impersonation: trusted node account %q is not of the form <namespace>/<service account>", t)
		}
		n.trusted[namespace+"/"+name] = true
	}
	return n, nil
}

// Trusted returns the trusted accounts, as namespace/name.
func (n *Nodes) Trusted() map[string]bool { return maps.Clone(n.trusted) }

// Authorize returns nil if the caller may request a certificate for the identity: the caller is a
// trusted node account, its token was reviewed by the API server and is bound to a pod, and a pod
// with that identity runs on the same node.
func (n *Nodes) Authorize(ctx context.Context, caller *authn.Caller, id certs.ID) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrNotOnNode, fmt.Sprintf(format, args...))
	}
	who := account{caller.ID.Namespace, caller.ID.ServiceAccount}
	switch {
	case !n.trusted[who.namespace+"/"+who.name]:
		return refuse("%s/%s is not a trusted node account", who.namespace, who.name)
	case caller.Method != authn.MethodKubernetes:
		return refuse("only a token that the API server reviewed proves on which node the caller is")
	case caller.Pod.Name == "" || caller.Pod.UID == "":
		return refuse("the token of %s/%s is not bound to a pod", who.namespace, who.name)
	case id.TrustDomain != n.cfg.TrustDomain:
		return refuse("%s is not of trust domain %s", id, n.cfg.TrustDomain)
	}
	node, err := n.nodeOf(ctx, who, caller.Pod)
	if err != nil {
		return err
	}
	if node == "" {
		return refuse("the pod %s/%s was deleted or replaced, or is not on a node", who.namespace, caller.Pod.Name)
	}
	wanted := account{id.Namespace, id.ServiceAccount}
	found, err := n.onNode(ctx, node, func(p podOfNode) bool { return p.account == wanted })
	if err != nil {
		return err
	}
	if !found {
		return refuse("no pod of %s/%s runs on the node %s of the caller", wanted.namespace, wanted.name, node)
	}
	return nil
}

// nodeOf returns the node of the caller's pod, or "" if there is none.
func (n *Nodes) nodeOf(ctx context.Context, who account, pod authn.Pod) (string, error) {
	same := func(p podOfNode) bool { return p.account == who && p.name == pod.Name && p.uid == pod.UID }
	if pod.Node != "" {
		found, err := n.onNode(ctx, pod.Node, same)
		if err != nil || !found {
			return "", err
		}
		return pod.Node, nil
	}
	p, err := n.cfg.Client.api.pods(who.namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", n.unknown(fmt.Errorf("get the pod %s/%s: %w", who.namespace, pod.Name, err))
	}
	if !same(reducePod(p)) {
		return "", nil
	}
	return p.Spec.NodeName, nil
}

// onNode reports whether a matching pod runs on the node.
func (n *Nodes) onNode(ctx context.Context, node string, is func(podOfNode) bool) (bool, error) {
	n.mu.Lock()
	known := n.nodes[node]
	n.mu.Unlock()
	age := time.Since(known.listed)
	if age < nodeTTL && slices.ContainsFunc(known.pods, is) {
		return true, nil
	}
	if age < nodeRetry {
		return false, nil
	}
	list, err := n.cfg.Client.api.pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return false, n.unknown(fmt.Errorf("list the pods of node %s: %w", node, err))
	}
	known = nodePods{listed: time.Now()}
	for i := range list.Items {
		if p := &list.Items[i]; p.Spec.NodeName == node && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			known.pods = append(known.pods, reducePod(p))
		}
	}
	n.mu.Lock()
	if len(n.nodes) >= maxNodes {
		clear(n.nodes) // discards removed nodes; the others are listed again
	}
	n.nodes[node] = known
	n.mu.Unlock()
	return slices.ContainsFunc(known.pods, is), nil
}

// unknown logs why the API server is unavailable, and returns an error that lets the caller retry.
func (n *Nodes) unknown(err error) error {
	n.cfg.Client.log.Warn("the pods on the node of a caller cannot be read", "err", err)
	return fmt.Errorf("%w: the API server could not list the pods on the node of the caller", authn.ErrUnavailable)
}

func reducePod(p *corev1.Pod) podOfNode {
	name := p.Spec.ServiceAccountName
	if name == "" {
		name = "default"
	}
	return podOfNode{account: account{p.Namespace, name}, name: p.Name, uid: string(p.UID)}
}
