// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package report

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// State is how far a proxy is with a type, or with an object. The words are
// those of "istioctl proxy-status", where it has them.
type State string

// The states.
const (
	// Synced: the proxy took what it was sent last.
	Synced State = "SYNCED"
	// Stale: it has not answered yet.
	Stale State = "STALE"
	// NotSent: it was sent nothing, because there is nothing or it asked for
	// nothing.
	NotSent State = "NOT SENT"
	// Rejected: it refused what it was sent last.
	Rejected State = "REJECTED"
	// HeldBack: it has older resources, or none, in place of those that it or
	// another proxy of its kind refused.
	HeldBack State = "HELD BACK"
	// Gone: its connection has ended, so that what it has is not known.
	Gone State = "GONE"
	// Unknown: it is not known, because the question is about the past.
	Unknown State = "UNKNOWN"
)

// Replica is what one control plane knows of its proxies.
type Replica struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	// Snapshot counts the states of the mesh since the start of the replica;
	// Pushed is when the newest one went out.
	Snapshot uint64    `json:"snapshot"`
	Pushed   time.Time `json:"pushed"`
	// Problems is how many are known of objects, and ProblemsHash changes with them.
	Problems     int    `json:"problems"`
	ProblemsHash string `json:"problems_hash,omitempty"`
	// DenyList is nil if there is none, or if the caller may not know of it.
	DenyList *DenyList `json:"deny_list,omitempty"`
	// Faults is what is wrong with the control plane, if the caller may know of it.
	Faults []string `json:"faults,omitempty"`
	// Credentials are those of the replica that end, if the caller may know of them; the first to end first.
	Credentials []Credential `json:"credentials,omitempty"`
	Proxies     []Proxy      `json:"proxies"`
	// Gone are the proxies whose connection has ended and that have not come back. They have
	// one type, "-".
	Gone []Proxy `json:"gone,omitempty"`
}

// Credential is a certificate, or a set of keys, that a control plane needs.
type Credential struct {
	What  string    `json:"what"`
	Until time.Time `json:"until"`
	// Soon is true if little is left of its time: it should have been renewed, or will have to be.
	Soon bool `json:"soon,omitempty"`
	// Then is what happens at Until. By says who must renew it; empty if the control plane does.
	Then string `json:"then"`
	By   string `json:"by,omitempty"`
}

// DenyList is how far a deny list is in force.
type DenyList struct {
	Version string `json:"version,omitempty"` // hash of the entries; empty for an empty list
	Entries int    `json:"entries"`
	Serials int    `json:"serials"` // entries that are serial numbers
	// Since is when a snapshot had the list first.
	Since time.Time `json:"since,omitzero"`
	// Problem is why a newer text of the file is not in force.
	Problem string `json:"problem,omitempty"`
	// Acknowledged is how many proxies have acknowledged that snapshot. Missing are
	// the others, Ignoring those that do not look at serial numbers.
	Acknowledged int      `json:"acknowledged"`
	Missing      []string `json:"missing,omitempty"`
	Ignoring     []string `json:"ignoring_serials,omitempty"`
}

// Proxy is one proxy that is connected.
type Proxy struct {
	// Name is "<name>.<namespace>".
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	Cluster   string    `json:"cluster,omitempty"`
	Role      string    `json:"role"`
	Addresses []string  `json:"addresses"`
	Identity  string    `json:"identity,omitempty"`
	Envoy     string    `json:"envoy_version,omitempty"`
	Agent     string    `json:"agent_version,omitempty"`
	Connected time.Time `json:"connected"`
	Delta     bool      `json:"delta"`
	Replica   string    `json:"replica"`
	// Snapshot is the newest one of which nothing is on its way to the proxy.
	Snapshot uint64 `json:"snapshot"`
	Types    []Type `json:"types"`
	Held     []Held `json:"held_back,omitempty"`
}

// Type is how far a proxy is with the resources of a type.
type Type struct {
	Name  string `json:"type"` // cds, eds, lds, rds, vhds, ecds, sds, nds, pcds
	State State  `json:"state"`
	// Since is when it took, refused or was sent what State speaks of.
	Since time.Time `json:"since,omitzero"`
	// Resources is how many it is given; 0 for types that are not Envoy's
	// configuration.
	Resources int    `json:"resources"`
	Sent      string `json:"sent,omitempty"` // nonces
	Acked     string `json:"acked,omitempty"`
	// Reason says why: the words of Envoy or its agent for Rejected and HeldBack, see AgentCode.
	Reason string `json:"reason,omitempty"`
	// LastGood is true if an older version than a rejected one is in force.
	LastGood bool `json:"last_good,omitempty"`
}

// AgentCode is the prefix of rejections by agents. Envoy did not receive what they rejected.
const AgentCode = "code 0:"

// Kept says what is in force instead of something of a type that a proxy rejected. Status, explain and
// the log of the control plane have this sentence.
func Kept(name string, lastGood bool) string {
	switch {
	case lastGood:
		return "the last good version stays in force"
	case name == "ecds":
		return "the failStrategy of the plugin decides: requests are denied, or pass without it"
	}
	return "it is ignored: no earlier version is known"
}

// The reasons of states without words of Envoy.
const (
	Acknowledged = "acknowledged"
	Unanswered   = "no answer to the last response"
	Unrequested  = "the proxy has not requested it"
	Incomplete   = "not requested: clusters are incomplete"
	Nothing      = "there is none for the proxy"
	Lost         = "lost; its Envoy keeps what it had"
)

// Held is a resource that is held back because a proxy refused it.
type Held struct {
	Type   string    `json:"type"`
	Name   string    `json:"name"`
	By     string    `json:"rejected_by"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	// LastGood is true if an older version is given instead, false if the
	// resource is left out.
	LastGood bool `json:"last_good"`
	// Objects are those of which the resource is made and that changed with it.
	Objects []Cause `json:"objects,omitempty"`
}

// Cause is an object that contributes to a resource.
type Cause struct {
	Ref
	Source string `json:"source,omitempty"`
}

// Ref names an object.
type Ref struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Compare orders references by kind, namespace and name.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(strings.Compare(r.Kind, o.Kind), strings.Compare(r.Namespace, o.Namespace), strings.Compare(r.Name, o.Name))
}

// Problem is what is wrong with an object.
type Problem struct {
	Object  Ref       `json:"object"`
	Source  string    `json:"source,omitempty"`
	Reason  string    `json:"reason"`
	Warning bool      `json:"warning,omitempty"`
	Since   time.Time `json:"since,omitzero"` // zero if it is not known
}

// Object is what became of one object.
type Object struct {
	Ref
	Replica string `json:"replica"`
	// Found is false if no store has it: it may have been taken away, or never
	// have been valid.
	Found bool `json:"found"`
	// InForce is false for kinds of which proxies get nothing in this version.
	InForce bool   `json:"in_force"`
	Source  string `json:"source,omitempty"`
	// Changed is when its last change went out; Started is true if it is older
	// than the replica, whose start this is then.
	Changed time.Time `json:"changed,omitzero"`
	Started bool      `json:"since_start,omitempty"`
	// Pending is true if a newer change is being read, so that all that follows is older.
	Pending  bool      `json:"pending,omitempty"`
	Problems []Problem `json:"problems,omitempty"`
	// Resources are those that it has a part in, for some proxy.
	Resources []Resource `json:"resources,omitempty"`
	// Proxies are those that have such resources; Others is how many have none.
	Proxies []Standing `json:"proxies,omitempty"`
	Others  int        `json:"other_proxies"`
	// Gone are proxies that are not connected any more: whether they have it is not known.
	Gone []string `json:"gone_proxies,omitempty"`
	// Nobody says why there are no Proxies, where that is known. Lacking are
	// credentials that it names and that proxies are not given, and why.
	Nobody  string   `json:"nobody,omitempty"`
	Lacking []string `json:"lacking,omitempty"`
	// Then is set if the question names a time: the answer is then about proxies that are connected now,
	// which have the state Unknown, and about problems that the objects of then had with one another.
	Then *Then `json:"then,omitempty"`
	// Cut is true if there was more than an answer holds.
	Cut bool `json:"cut,omitempty"`
}

// Then is the past of an object, or of what decides the configuration of a proxy.
type Then struct {
	At time.Time `json:"at"`
	// Begins is when the history of the object begins.
	Begins time.Time `json:"begins,omitzero"`
	// Version is that of an object at this time, nil if it did not exist, and Next the one after it, nil
	// if there is none.
	Version *Version `json:"version,omitempty"`
	Next    *Version `json:"next,omitempty"`
	// NoEffect says why the effect of the object cannot be computed; empty if it was.
	NoEffect string `json:"no_effect,omitempty"`
	Unrecorded
}

// Resource is one resource, for all proxies that get it.
type Resource struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Proxies int    `json:"proxies"`
	// HeldBack is how many of them do not get it as it was made.
	HeldBack int `json:"held_back,omitempty"`
}

// Standing is how far one proxy is with an object.
type Standing struct {
	Proxy string `json:"proxy"`
	State State  `json:"state"`
	// Of Stale, Rejected and HeldBack: types or resources, since when, and
	// the words of Envoy or its agent.
	What   string    `json:"what,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	By     string    `json:"rejected_by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	// LastGood is true if it has an older version.
	LastGood bool `json:"last_good,omitempty"`
}

// Decided is what decides the configuration of one proxy.
type Decided struct {
	Proxy
	Objects  []Part    `json:"objects"`
	Problems []Problem `json:"problems,omitempty"` // of these objects
	// Then is set if the question names a time: the proxy is that of now.
	Then *Then `json:"then,omitempty"`
	// Cut is true if there was more than an answer holds.
	Cut bool `json:"cut,omitempty"`
}

// Part is the part of an object in the configuration of a proxy.
type Part struct {
	Ref
	// Source is where the object is, for example "config/catalog.yaml:12"; empty for
	// one that is in no store.
	Source string `json:"source,omitempty"`
	// Resources is how many it has a part in, by type.
	Resources map[string]int `json:"resources,omitempty"`
	// Role says what else it does.
	Role string `json:"role,omitempty"`
}

// Merge joins what replicas say of one object. They agree on the object; each
// has proxies of its own.
func Merge(all []Object) Object {
	if len(all) == 0 {
		return Object{}
	}
	out := all[0]
	out.Resources, out.Proxies, out.Problems = nil, nil, nil
	byName := map[[2]string]*Resource{}
	known := map[Problem]int{}
	var lacking []string
	for i, o := range all {
		if i > 0 {
			out.Replica += ", " + o.Replica
			out.Others += o.Others
			out.Found, out.InForce, out.Cut, out.Pending = out.Found || o.Found, out.InForce || o.InForce, out.Cut || o.Cut, out.Pending || o.Pending
			if o.Changed.After(out.Changed) {
				out.Changed, out.Started = o.Changed, o.Started
			}
			out.Source = cmp.Or(out.Source, o.Source)
			if out.Then != nil && out.Then.Version == nil && o.Then != nil {
				out.Then = o.Then // its history may reach back farther
			}
		}
		for _, p := range o.Problems {
			plain := p
			plain.Since = time.Time{}
			at, twice := known[plain]
			if !twice {
				known[plain] = len(out.Problems)
				out.Problems = append(out.Problems, p)
			} else if since := &out.Problems[at].Since; !p.Since.IsZero() && p.Since.Before(*since) {
				*since = p.Since
			}
		}
		for _, r := range o.Resources {
			key := [2]string{r.Type, r.Name}
			if same := byName[key]; same != nil {
				same.Proxies += r.Proxies
				same.HeldBack += r.HeldBack
				continue
			}
			byName[key] = &r
		}
		out.Proxies = append(out.Proxies, o.Proxies...)
		if i > 0 {
			out.Gone = append(out.Gone, o.Gone...)
		}
		lacking = append(lacking, o.Lacking...)
		out.Nobody = cmp.Or(out.Nobody, o.Nobody)
	}
	slices.Sort(out.Gone)
	out.Gone = slices.DeleteFunc(slices.Compact(out.Gone), func(name string) bool {
		return slices.ContainsFunc(out.Proxies, func(p Standing) bool { return p.Proxy == name })
	})
	slices.Sort(lacking)
	if out.Lacking = slices.Compact(lacking); len(out.Proxies) > 0 {
		out.Nobody = "" // those of another replica have it
	}
	for _, r := range byName {
		out.Resources = append(out.Resources, *r)
	}
	slices.SortFunc(out.Resources, ByName)
	slices.SortStableFunc(out.Proxies, func(a, b Standing) int { return strings.Compare(a.Proxy, b.Proxy) })
	return out
}

// ByName orders resources by type, in the order in which they are sent, and name.
func ByName(a, b Resource) int {
	return cmp.Or(cmp.Compare(Order(a.Type), Order(b.Type)), strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
}

// Order is the place of a type among those that are sent.
func Order(name string) int {
	order := []string{"cds", "eds", "lds", "rds", "vhds", "ecds", "sds", "nds", "pcds"}
	if i := slices.Index(order, name); i >= 0 {
		return i
	}
	return len(order)
}
