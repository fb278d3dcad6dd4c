// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Type is the type of a question, whose one name is what is asked for, and of its
// answer. A longer type, istio.io/debug/syncz, says itself what is asked for; its
// names are the proxy, as istioctl does it.
const Type = "istio.io/debug"

// Questions of a stream: each may cost as much as a push.
const (
	Every   = 100 * time.Millisecond
	Burst   = 20
	maxName = 1 << 10 // bytes
)

// debugger answers one question.
type debugger struct {
	cfg    Config
	source Source
	mesh   *snapshot.Mesh
	query  url.Values
	asker  asker
	// then is true for the past, see inPast.
	then bool
	// ended is closed when nobody waits for the answer any more; nil if that is not known.
	ended <-chan struct{}
}

// asker is who asks, and what of the mesh it sees.
type asker struct {
	name string // for messages
	// all is true for one that sees all of the mesh; others see namespace.
	all       bool
	namespace string
	// stream is that on which the question came, nil for none: without another
	// name it is about its proxy.
	stream *Stream
}

// answerOf is an answer: messages, or what becomes JSON.
type answerOf struct {
	messages []proto.Message
	names    []string // of the messages
	json     any
}

// answerer makes an answer. Wide answers are about all of the mesh and for the root
// namespace alone; the others show each caller its own namespace.
type answerer struct {
	wide   bool
	answer func(debugger) (answerOf, error)
	about  string // for readers of the index
}

// answers returns the answers by name. Names and content are those of Istio's control
// plane where it has them.
func answers() map[string]answerer {
	return map[string]answerer{
		"list":                {false, debugger.list, "the names of these queries"},
		"syncz":               {false, debugger.syncz, "whether each proxy has acknowledged its configuration"},
		"connections":         {false, debugger.connections, "the streams"},
		"adsz":                {false, debugger.adsz, "the streams and their subscriptions; ?push=true sends everything again"},
		"proxies":             {false, debugger.proxies, "the proxies, with the state of each type and its age; ?proxyID="},
		"explain":             {false, debugger.explain, "the effect of an object, ?kind=&namespace=&name=&at=TIME; what decides the configuration of a proxy, ?proxyID=&at=TIME"},
		"request":             {false, debugger.request, "what a proxy decides about a request, ?from=&to=&port=&method=&path=&host=&header=NAME=VALUE&jwt=&at=TIME, or the same as a form that is sent by POST"},
		"replay":              {true, debugger.replay, "what a proxy would decide about recorded requests with other policies; a form with to=, policies=, records="},
		"whatif":              {true, debugger.whatIf, "what a change of objects would do; a form with objects=, source=, namespace=, delete=true, proxyID="},
		"history":             {true, debugger.history, "the versions of objects, ?kind=&namespace=&name=&since=TIME; with the objects, ?revision="},
		"changes":             {true, debugger.changes, "the objects that differ between two moments, ?from=TIME&to=TIME"},
		"analyze":             {true, debugger.analyze, "mistakes in the objects in force; a form with objects=, source=, namespace= adds or replaces some"},
		"config_dump":         {false, debugger.configDump, "the configuration of a proxy, with what is held back from it; ?proxyID="},
		"resourcesz":          {false, debugger.resourcesz, "the names of the resources that a proxy receives; ?proxyID="},
		"sidecarz":            {false, debugger.sidecarz, "the Sidecar object of a proxy, and the services that it sees; ?proxyID="},
		"instancesz":          {false, debugger.instancesz, "the services that each proxy belongs to"},
		"ndsz":                {false, debugger.ndsz, "the name table of a proxy; ?proxyID="},
		"edsz":                {false, debugger.edsz, "the endpoints that a proxy may request; ?proxyID="},
		"ecdsz":               {false, debugger.ecdsz, "the filters that a proxy may request, WasmPlugins for example; ?proxyID="},
		"clusterz":            {true, debugger.clusterz, "the Kubernetes clusters that services are read from"},
		"config_distribution": {true, debugger.distribution, "the version of an object that each proxy has acknowledged; ?resource=KIND/NAMESPACE/NAME"},
		"registryz":           {true, func(d debugger) (answerOf, error) { return answerOf{json: d.mesh.Services.Sorted}, nil }, "the services"},
		"endpointz":           {true, debugger.endpointz, "the endpoints of all services"},
		"configz":             {true, debugger.configz, "the objects of the stores; ?kind="},
		"push_status":         {true, func(d debugger) (answerOf, error) { return answerOf{json: orEmpty(d.mesh.Problems)}, nil }, "conflicts between objects"},
		"pushcontext":         {true, debugger.pushContext, "the newest snapshot in numbers"},
		"mesh":                {true, func(d debugger) (answerOf, error) { return answerOf{json: asJSON{d.mesh.Config}}, nil }, "the mesh wide settings"},
	}
}

// elsewhere says where the answers are of queries that only Istio's control plane has.
var elsewhere = map[string]string{
	"authorizationz":   "explain has the policies of a proxy, configz?kind=AuthorizationPolicy all of them",
	"cachez":           "proxies share resources, there is no other cache; resourcesz has their names",
	"endpointShardz":   "endpointz has the endpoints, with the cluster of each",
	"force_disconnect": "adsz?push=true sends everything again",
	"inject":           "outrigger inject prints what the webhook does",
	"mcsz":             "clusterz has the clusters, registryz the services",
	"networkz":         "endpointz has the network of each endpoint",
	"telemetryz":       "explain has the objects of a proxy, configz?kind=Telemetry all of them",
}

// list returns the names of the answers.
func (d debugger) list() (answerOf, error) {
	return answerOf{json: slices.Sorted(maps.Keys(answers()))}, nil
}

// Question is a question on a stream.
type Question struct {
	// Caller is proven, on an encrypted stream; nil if not.
	Caller *authn.Caller
	// Stream is that of the question, and Mesh the snapshot that it works with.
	Stream *Stream
	Mesh   *snapshot.Mesh
	Type   string
	Names  []string
	// Allowed is false if the stream has asked too much in the last moment.
	Allowed bool
}

// Answer returns the resources of the answer to a question on a stream. What cannot
// be answered is said in the answer: somebody waits for it, and the stream has other
// things to carry.
func (s *Server) Answer(q Question) ([]*xds.Resource, error) {
	answer, err := s.answer(q)
	var resources []*xds.Resource
	if err == nil {
		resources, err = answer.resources(q.Type, q.Names)
	}
	if err == nil {
		return resources, nil
	}
	return answerOf{json: map[string]string{"error": err.Error()}}.resources(q.Type, q.Names)
}

func (s *Server) answer(q Question) (answerOf, error) {
	if q.Caller == nil {
		return answerOf{}, errors.New("queries require a stream that is encrypted and authenticated: connect to the port with TLS")
	}
	if !q.Allowed {
		return answerOf{}, errors.New("too many queries: retry in a moment")
	}
	what, typed := strings.CutPrefix(q.Type, Type+"/")
	query := url.Values{}
	if len(q.Names) > 1 {
		return answerOf{}, fmt.Errorf("a request may contain one query, not %d", len(q.Names))
	}
	name := strings.Join(q.Names, "")
	if len(name) > maxName {
		return answerOf{}, fmt.Errorf("the query has %d bytes; at most %d are allowed", len(name), maxName)
	}
	if typed && name != "" {
		query.Set("proxyID", name)
	} else if !typed {
		u, err := url.Parse(name)
		if err != nil {
			return answerOf{}, fmt.Errorf("the query %q cannot be read", name)
		}
		what, query = strings.Trim(u.Path, "/"), u.Query()
	}
	who := askerOf(q.Mesh, q.Caller)
	who.stream = q.Stream
	answer, err := s.debugger(q.Mesh, query, who).ask(what)
	if err == nil && !typed {
		answer.messages, err = nil, answer.fillJSON()
	}
	return answer, err
}

func (s *Server) debugger(mesh *snapshot.Mesh, query url.Values, who asker) debugger {
	return debugger{cfg: s.cfg, source: s.source, mesh: mesh, query: query, asker: who}
}

// Why a question has no answer; any other error is an invalid question.
var (
	errUnknown   = errors.New("unknown")
	errForbidden = errors.New("not allowed")
	errEnded     = errors.New("the request has ended")
)

// ask returns the answer of a name.
func (d debugger) ask(what string) (answerOf, error) {
	a, ok := answers()[what]
	if instead := elsewhere[what]; instead != "" {
		return answerOf{}, fmt.Errorf("%q is %w here: %s", what, errUnknown, instead)
	}
	if !ok {
		return answerOf{}, fmt.Errorf("%q is %w; it must be one of: %s", what, errUnknown, strings.Join(slices.Sorted(maps.Keys(answers())), ", "))
	}
	if a.wide && !d.asker.all {
		return answerOf{}, fmt.Errorf("%w: %s is for callers of the namespace %s, not %s", errForbidden, what, rootOf(d.mesh), d.asker.name)
	}
	return a.answer(d)
}

// fillJSON makes JSON of messages.
func (a *answerOf) fillJSON() error {
	if a.json != nil || len(a.messages) == 0 {
		return nil
	}
	all := make([]asJSON, len(a.messages))
	for i, m := range a.messages {
		typed, err := anypb.New(m) // says in JSON what it is
		if err != nil {
			return fmt.Errorf("write %s: %w", a.names[i], err)
		}
		all[i] = asJSON{typed}
	}
	a.json = map[string]any{"configs": all}
	return nil
}

// resources makes the resources of an answer.
func (a answerOf) resources(typeURL string, names []string) ([]*xds.Resource, error) {
	if a.messages == nil {
		b, err := json.MarshalIndent(a.json, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("write the response to %s: %w", typeURL, err)
		}
		return []*xds.Resource{{Name: cmp.Or(strings.Join(names, ","), typeURL), Any: xds.Any(Type, b)}}, nil
	}
	out := make([]*xds.Resource, len(a.messages))
	for i, m := range a.messages {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("write the response to %s: %w", typeURL, err)
		}
		out[i] = &xds.Resource{Name: a.names[i], Any: xds.Any("type.googleapis.com/"+string(proto.MessageName(m)), b)}
	}
	return out, nil
}

// rootOf is the namespace whose callers see all of the mesh.
func rootOf(mesh *snapshot.Mesh) string {
	return cmp.Or(mesh.Config.GetRootNamespace(), "istio-system")
}

// askerOf says what a caller sees.
func askerOf(mesh *snapshot.Mesh, caller *authn.Caller) asker {
	return asker{name: caller.ID.String(), namespace: caller.ID.Namespace, all: caller.ID.Namespace == rootOf(mesh)}
}

// visible returns the streams that the caller sees, by proxy.
func (d debugger) visible() []*Stream {
	var out []*Stream
	for _, st := range d.source.Streams() {
		if d.asker.all || st.Proxy.Namespace == d.asker.namespace {
			out = append(out, st)
		}
	}
	slices.SortFunc(out, func(a, b *Stream) int {
		return cmp.Or(strings.Compare(a.Proxy.ID, b.Proxy.ID), cmp.Compare(a.Number, b.Number))
	})
	return out
}

// subject is who a question is about: the proxyID of the query, or who asks. Of
// several streams of a proxy it is the newest.
func (d debugger) subject() (*Stream, error) {
	id := d.query.Get("proxyID")
	if id == "" && d.asker.stream != nil {
		return d.asker.stream, nil
	}
	if id == "" {
		return nil, errors.New("name the proxy, as in ?proxyID=catalog-1.shop")
	}
	var found *Stream
	for _, st := range d.visible() {
		if st.Proxy.ID == id {
			found = st
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%w: no proxy %q is connected that %s may query", errUnknown, id, d.asker.name)
	}
	return found, nil
}

// proxy is that of the subject.
func (d debugger) proxy() (*model.Proxy, error) {
	st, err := d.subject()
	if err != nil {
		return nil, err
	}
	return st.Proxy, nil
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
