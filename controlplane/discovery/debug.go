// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// debugType is the type of a question of people, whose one name is what they
// ask for, and of its answer. A longer type, istio.io/debug/syncz, says itself
// what is asked for; its names are the proxy, as istioctl has it.
const debugType = "istio.io/debug"

// Questions of a stream: each may cost as much as a push.
const (
	debugEvery = 100 * time.Millisecond
	debugBurst = 20
	maxDebug   = 1 << 10 // bytes of a name
)

// debugger answers one question.
type debugger struct {
	*Server
	mesh  *snapshot.Mesh
	query url.Values
	asker asker
}

// asker is who asks, and what of the mesh it sees.
type asker struct {
	name string // for messages
	// all is true for one that sees all of the mesh; others see namespace.
	all       bool
	namespace string
	// stream is that on which the question came, nil for none: without another
	// name it is about its proxy.
	stream *stream
}

// answerOf is an answer: messages, or what becomes JSON.
type answerOf struct {
	messages []proto.Message
	names    []string // of the messages
	json     any
}

// debugAnswer makes an answer. Those of wide speak of all of the mesh and are
// for the root namespace alone; the others show each caller its own namespace.
type debugAnswer struct {
	wide   bool
	answer func(debugger) (answerOf, error)
	about  string // for people
}

// debugAnswers are what can be asked for, by name. The names and their content
// are those of Istio's control plane where it has them.
func debugAnswers() map[string]debugAnswer {
	return map[string]debugAnswer{
		"list":                {false, debugger.list, "the names of these answers"},
		"syncz":               {false, debugger.syncz, "whether each proxy has what it was sent"},
		"connections":         {false, debugger.connections, "the streams"},
		"adsz":                {false, debugger.adsz, "the streams, and what they ask for; ?push=true sends everything anew"},
		"proxies":             {false, debugger.proxies, "the proxies, how far they are with each type, since when; ?proxyID="},
		"explain":             {false, debugger.explain, "what became of an object, ?kind=&namespace=&name=; what decides the configuration of a proxy, ?proxyID="},
		"config_dump":         {false, debugger.configDump, "what a proxy is given, with what is held back from it; ?proxyID="},
		"resourcesz":          {false, debugger.resourcesz, "the names of the resources that a proxy is given; ?proxyID="},
		"sidecarz":            {false, debugger.sidecarz, "the Sidecar object of a proxy, and the services that it sees; ?proxyID="},
		"instancesz":          {false, debugger.instancesz, "the services that each proxy belongs to"},
		"ndsz":                {false, debugger.ndsz, "the name table of a proxy; ?proxyID="},
		"edsz":                {false, debugger.edsz, "the endpoints that a proxy may ask for; ?proxyID="},
		"config_distribution": {true, debugger.distribution, "the version of an object that each proxy has acknowledged; ?resource=KIND/NAMESPACE/NAME"},
		"registryz":           {true, func(d debugger) (answerOf, error) { return answerOf{json: d.mesh.Services.Sorted}, nil }, "the services"},
		"endpointz":           {true, debugger.endpointz, "the endpoints of all services"},
		"configz":             {true, debugger.configz, "the objects of the stores; ?kind="},
		"push_status":         {true, func(d debugger) (answerOf, error) { return answerOf{json: orEmpty(d.mesh.Problems)}, nil }, "what is wrong between objects"},
		"pushcontext":         {true, debugger.pushContext, "the newest snapshot in numbers"},
		"mesh":                {true, func(d debugger) (answerOf, error) { return answerOf{json: asJSON{d.mesh.Config}}, nil }, "the mesh wide settings"},
	}
}

// list gives the names of the answers.
func (d debugger) list() (answerOf, error) {
	return answerOf{json: slices.Sorted(maps.Keys(debugAnswers()))}, nil
}

// isDebug reports whether a request is a question of people.
func isDebug(typeURL string) bool {
	return typeURL == debugType || strings.HasPrefix(typeURL, debugType+"/")
}

// answerDebug answers a question on the stream that it came on. What is not
// answered is said in the answer: a person waits for it, and the stream has
// other things to carry.
func (s *stream) answerDebug(q *request) error {
	if q.nonce != "" || q.rejected != "" {
		return nil // an answer to an answer
	}
	names := q.subscribe
	if !s.delta {
		names = q.names()
	}
	if s.questions == nil {
		s.questions = rate.NewLimiter(rate.Every(debugEvery), debugBurst)
	}
	answer, err := s.debug(q.typeURL, names)
	var resources []*xds.Resource
	if err == nil {
		resources, err = answer.resources(q.typeURL, names)
	}
	if err != nil {
		s.log.Debug("a question is not answered", "type_url", q.typeURL, "err", err)
		if resources, err = (answerOf{json: map[string]string{"error": err.Error()}}).resources(q.typeURL, names); err != nil {
			return err // not possible: it is text
		}
	}
	s.nonces++
	r := &response{typeURL: q.typeURL, nonce: strconv.FormatUint(s.nonces, 36), body: encode(resources, s.delta)}
	return s.sendMsg(r.frame())
}

func (s *stream) debug(typeURL string, names []string) (answerOf, error) {
	if s.caller == nil || !s.secure {
		return answerOf{}, errors.New("questions are answered on streams that are encrypted and have shown who they are: connect to the port with TLS")
	}
	if !s.questions.Allow() {
		return answerOf{}, errors.New("too many questions, ask again in a moment")
	}
	what, typed := strings.CutPrefix(typeURL, debugType+"/")
	query := url.Values{}
	if len(names) > 1 {
		return answerOf{}, fmt.Errorf("one question is answered at a time, not %d", len(names))
	}
	name := strings.Join(names, "")
	if len(name) > maxDebug {
		return answerOf{}, fmt.Errorf("the question has %d bytes, at most %d are read", len(name), maxDebug)
	}
	if typed && name != "" {
		query.Set("proxyID", name)
	} else if !typed {
		u, err := url.Parse(name)
		if err != nil {
			return answerOf{}, fmt.Errorf("the question %q cannot be read", name)
		}
		what, query = strings.Trim(u.Path, "/"), u.Query()
	}
	who := s.server.askerOf(s.mesh.Mesh, s.caller)
	who.stream = s
	answer, err := debugger{Server: s.server, mesh: s.mesh.Mesh, query: query, asker: who}.ask(what)
	if err == nil && !typed {
		answer.messages, err = nil, answer.fillJSON()
	}
	return answer, err
}

// Why a question has no answer; what is none of these is the asker's mistake.
var (
	errUnknown   = errors.New("not known here")
	errForbidden = errors.New("not allowed")
)

// ask gives the answer of a name.
func (d debugger) ask(what string) (answerOf, error) {
	a, ok := debugAnswers()[what]
	if !ok {
		return answerOf{}, fmt.Errorf("%q is %w, ask for one of: %s", what, errUnknown, strings.Join(slices.Sorted(maps.Keys(debugAnswers())), ", "))
	}
	if a.wide && !d.asker.all {
		return answerOf{}, fmt.Errorf("%w: %s is for callers of the namespace %s, and this is %s", errForbidden, what, rootOf(d.mesh), d.asker.name)
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
			return nil, fmt.Errorf("write the answer to %s: %w", typeURL, err)
		}
		return []*xds.Resource{{Name: cmp.Or(strings.Join(names, ","), typeURL), Any: xds.Any(debugType, b)}}, nil
	}
	out := make([]*xds.Resource, len(a.messages))
	for i, m := range a.messages {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("write the answer to %s: %w", typeURL, err)
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
func (s *Server) askerOf(mesh *snapshot.Mesh, caller *authn.Caller) asker {
	return asker{name: caller.ID.String(), namespace: caller.ID.Namespace, all: caller.ID.Namespace == rootOf(mesh)}
}

// visible are the streams that the caller sees, by proxy.
func (d debugger) visible() []*stream {
	var out []*stream
	d.mu.Lock()
	for st := range d.streams {
		if d.asker.all || st.proxy.Namespace == d.asker.namespace {
			out = append(out, st)
		}
	}
	d.mu.Unlock()
	slices.SortFunc(out, func(a, b *stream) int {
		return cmp.Or(strings.Compare(a.proxy.ID, b.proxy.ID), cmp.Compare(a.number, b.number))
	})
	return out
}

// subject is who a question is about: the proxyID of the query, or who asks. Of
// several streams of a proxy it is the newest.
func (d debugger) subject() (*stream, error) {
	id := d.query.Get("proxyID")
	if id == "" && d.asker.stream != nil {
		return d.asker.stream, nil
	}
	if id == "" {
		return nil, errors.New("name the proxy, as in ?proxyID=catalog-1.shop")
	}
	var found *stream
	for _, st := range d.visible() {
		if st.proxy.ID == id {
			found = st
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%w: no proxy %q is connected that %s may ask about", errUnknown, id, d.asker.name)
	}
	return found, nil
}

// proxy is that of the subject.
func (d debugger) proxy() (*model.Proxy, error) {
	st, err := d.subject()
	if err != nil {
		return nil, err
	}
	return st.proxy, nil
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
