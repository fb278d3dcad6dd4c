// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Config is what questions are answered with, beside what the source knows. Each function may be nil: then nothing is known.
type Config struct {
	// Authenticator identifies callers over HTTP; nil leaves loopback peers.
	Authenticator authn.Authenticator
	// Replica names this control plane, Version is that of its program.
	Replica, Version string
	// Push sends everything again.
	Push func()
	// Preview returns a generator for snapshots that no proxy receives; nil if there is none.
	Preview func() Generator
	// Propose returns what would follow a snapshot after changes; nil if there is none.
	Propose func(*snapshot.Mesh, Proposal) Outcome
	// FlipWork bounds the requests that what-if tries, in units of its work, and FlipTime the time for
	// them; 0 means 60,000 and 5 s.
	FlipWork int
	FlipTime time.Duration
	// Objects are the configuration.
	Objects StoredObjects
	// Stores are the URLs of their stores, without passwords.
	Stores []string
	// Problems lists what is wrong with objects, in the stores and in the newest
	// snapshot, and since when.
	Problems func() []KnownProblem
	// Changed returns the sequence of the snapshot that brought the last change of
	// an object, and when; first is true for one that is as it was at the start.
	Changed func(model.Key) (sequence uint64, at time.Time, first bool)
	// Pending reports whether the newest snapshot lacks a change of an object; it may be nil.
	Pending func(model.Key) bool
	// Credential returns an error if a Secret is not a valid certificate with its key.
	Credential func(namespace, name string) error
	// GatewaysOwnNamespace is that of the generator: Gateways select proxies of their own
	// namespace only.
	GatewaysOwnNamespace bool
	// DenyListProblem returns why the newest text of the deny list is not in force;
	// empty if it is.
	DenyListProblem func() string
	// Faults lists what is wrong with the control plane, as sentences.
	Faults func() []string
	// Credentials returns those of the control plane that end; nil means that there are none.
	Credentials func() []report.Credential
	// Past is the versions of objects, and PastServices those of services of clusters; nil if they are
	// not recorded.
	Past, PastServices Past
	// Clusters lists the Kubernetes clusters that services are read from.
	Clusters func() []ClusterState
	// Registerer takes metrics of the newest snapshot.
	Registerer prometheus.Registerer
}

// Proposal is changes of objects, of services of clusters, of the mesh config and of the networks. A nil
// object or service is deleted; a nil mesh config, and nil networks, do not change.
type Proposal struct {
	Objects  map[model.Key]*model.Config
	Services map[model.Key]*registry.PlatformService
	Mesh     *meshv1alpha1.MeshConfig
	Networks *meshv1alpha1.MeshNetworks
}

// Outcome is the snapshot that would follow, and the conversions of the Gateway API and of Ingresses
// before and after; nil if these are not converted.
type Outcome struct {
	Mesh          *snapshot.Mesh
	Before, After *gatewayapi.Result
	// Unread are ConfigMaps with roots that are not read yet.
	Unread []string
}

// StoredObjects are the objects of the stores.
type StoredObjects interface {
	Schemas() []schema.Schema
	Get(key model.Key) *model.Config
	List(kind model.Kind, namespace string) []*model.Config
}

// ClusterState is a Kubernetes cluster. Secret is "namespace/name" of the Secret that has its
// kubeconfig, empty for the cluster of the control plane.
type ClusterState struct {
	ID     string `json:"id"`
	Secret string `json:"secretName"`
	// Status is "synced" or "syncing", or why the cluster cannot be read.
	Status string `json:"syncStatus"`
}

// KnownProblem is a problem with the time at which it was seen first.
type KnownProblem struct {
	model.Problem
	Since time.Time
}

// Source is the server that questions are about.
type Source interface {
	// Snapshot returns the newest snapshot and when its push began; nil before the
	// first.
	Snapshot() (*snapshot.Mesh, time.Time)
	Streams() []*Stream
	// Gone are the proxies whose connection has ended and that have not come back.
	Gone() []Gone
	Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set
	// Problems are those that appeared when resources were generated.
	Problems() []KnownProblem
	// RejectedResources returns how many resources are withheld.
	RejectedResources() int
	// Missing returns the ids of all proxies, and those that do not have the
	// snapshot with a sequence.
	Missing(sequence uint64) (all []string, missing map[string]bool)
	// DenyList reports the deny list, with the problem of its newest text; nil if
	// there is none.
	DenyList(problem string) *report.DenyList
	// CredentialFault returns why a proxy does not get a certificate; nil if it does.
	CredentialFault(mesh *snapshot.Mesh, st *Stream, name string) error
}

// Gone is a proxy whose connection ended.
type Gone struct {
	Proxy    *model.Proxy
	Identity string
	Since    time.Time
}

// Stream is the state of a stream at one moment.
type Stream struct {
	ID     string // for logs and answers
	Number uint64
	Proxy  *model.Proxy
	// Caller opened the stream; nil if the port takes everybody. Secure is true if it
	// is proven and the stream is encrypted.
	Caller    *authn.Caller
	Secure    bool
	Delta     bool
	Connected time.Time
	// Objects is true for another control plane, which reads objects.
	Objects bool
	// Types are the states of all types, in the order in which they are sent.
	Types []TypeState
	// Follows is true once the proxy requested a type of xds.Types; Settled is the
	// sequence of the newest snapshot that it has answered in whole.
	Follows    bool
	Settled    uint64
	Rejections []Rejection
	// Given are the sets of the last round; nil before the first.
	Given *quarantine.Sets
	// Withheld returns what is withheld from the proxy, and whether it waits for a
	// canary.
	Withheld func() ([]quarantine.Withheld, bool)
}

// TypeState are the numbers of responses of a type: the last one that was sent, the
// last that was accepted, and the last that was rejected. 0 is none.
type TypeState struct {
	TypeURL, Name         string
	Sent, Acked, Rejected uint64
	Reason                string // of the last rejection
	// Resumed is true if the proxy reconnected with everything that is current.
	Resumed bool
	// Since is when the last of these happened, or the type was requested; zero if it was not.
	Since time.Time
}

// lastGood reports whether an older version than the last one, which the proxy rejected, is in force. A
// plugin that an agent could not load is replaced, by what its fail strategy says.
func (t TypeState) lastGood() bool {
	return (t.Acked != 0 || t.Resumed) && (t.TypeURL != xds.TypeExtension || !strings.HasPrefix(t.Reason, report.AgentCode))
}

// reason says why the type has its state.
func (t TypeState) reason() string {
	switch t.State() {
	case report.Rejected:
		return t.Reason
	case report.Synced:
		return report.Acknowledged
	case report.Stale:
		return report.Unanswered
	}
	if t.Since.IsZero() {
		return report.Unrequested
	}
	return report.Nothing
}

// Rejection is what a proxy does not have because it rejected it: what the snapshots
// with sequences above After, up to UpTo, brought of a type, by its short name.
type Rejection struct {
	Type        string
	After, UpTo uint64
	Reason      string
	// Names are the resources, of types that proxies reject one by one.
	Names []string
}

// State returns the state of a type.
func (t TypeState) State() report.State {
	switch {
	case t.Sent == 0 && t.Resumed:
		return report.Synced
	case t.Sent == 0:
		return report.NotSent
	case t.Sent == t.Rejected:
		return report.Rejected
	case t.Sent == t.Acked:
		return report.Synced
	}
	return report.Stale
}

// typeOf returns the state of a type; the zero value if it is unknown.
func (s *Stream) typeOf(typeURL string) TypeState {
	for _, t := range s.Types {
		if t.TypeURL == typeURL {
			return t
		}
	}
	return TypeState{}
}

// nameOf returns the short name of a type.
func (s *Stream) nameOf(typeURL string) string { return s.typeOf(typeURL).Name }

// Server answers questions.
type Server struct {
	cfg    Config
	source Source
}

// New returns a Server.
func New(cfg Config, source Source) *Server { return &Server{cfg: cfg, source: source} }
