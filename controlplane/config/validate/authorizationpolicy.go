// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"slices"
	"strconv"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateAuthorizationPolicy(c *checker, cfg *model.Config) {
	p, ok := cfg.Spec.(*securityv1beta1.AuthorizationPolicy)
	if !ok {
		return
	}
	c.targets(targets{selector: p.GetSelector(), ref: p.GetTargetRef(), refs: p.GetTargetRefs()})
	c.dryRun(cfg.Annotations, p.GetAction())
	action, rules := p.GetAction(), p.GetRules()
	custom := action == securityv1beta1.AuthorizationPolicy_CUSTOM
	switch {
	case len(rules) == 0 && custom:
		c.errorf("spec.rules", "is empty: without rules, the action CUSTOM applies to no request; write \"rules: [{}]\" for every request")
	case len(rules) == 0 && action == securityv1beta1.AuthorizationPolicy_DENY:
		c.errorf("spec.rules", "is empty: without rules, the action DENY denies nothing; write \"rules: [{}]\" for every request")
	case len(rules) > mostPolicyRules:
		c.errorf("spec.rules", "has %d entries: at most %d are allowed", len(rules), mostPolicyRules)
	}
	_, hasProvider := p.GetActionDetail().(*securityv1beta1.AuthorizationPolicy_Provider)
	switch {
	case custom && p.GetProvider().GetName() == "":
		c.errorf("spec.provider.name", "is missing: the action CUSTOM needs the name of one of the mesh config's extensionProviders")
	case !custom && hasProvider:
		c.errorf("spec.provider", "is set, and the action is %s: remove it, or write action: CUSTOM", action)
	}
	for i, r := range rules {
		c.policyRule(r, action, field.Index("spec.rules", i))
	}
}

// mostPolicyRules bounds the lists of an AuthorizationPolicy.
const mostPolicyRules = 512

// dryRun checks the annotation that keeps a policy from taking effect.
func (c *checker) dryRun(annotations map[string]string, action securityv1beta1.AuthorizationPolicy_Action) {
	v, ok := annotations[dryRunAnnotation]
	if !ok {
		return
	}
	path := "metadata.annotations[" + dryRunAnnotation + "]"
	if _, err := strconv.ParseBool(v); err != nil {
		c.errorf(path, "is %s: write \"true\" or \"false\"", field.Quote(v))
	}
	switch action {
	case securityv1beta1.AuthorizationPolicy_ALLOW, securityv1beta1.AuthorizationPolicy_DENY:
	default:
		c.errorf(path, "is set, and the action is %s: only ALLOW and DENY can be tried without effect; remove it", action)
	}
}

func (c *checker) policyRule(r *securityv1beta1.Rule, action securityv1beta1.AuthorizationPolicy_Action, path string) {
	custom := action == securityv1beta1.AuthorizationPolicy_CUSTOM
	if n := len(r.GetFrom()); n > mostPolicyRules {
		c.errorf(path+".from", "has %d entries: at most %d are allowed", n, mostPolicyRules)
	}
	for i, f := range r.GetFrom() {
		at := field.Index(path+".from", i) + ".source"
		c.policySource(f.GetSource(), at)
		if custom {
			c.customSource(f.GetSource(), at)
		}
	}
	for i, t := range r.GetTo() {
		c.policyOperation(t.GetOperation(), field.Index(path+".to", i)+".operation")
	}
	for i, w := range r.GetWhen() {
		at := field.Index(path+".when", i)
		c.condition(w, at)
		if custom && (strings.HasPrefix(w.GetKey(), "request.auth.") || strings.HasPrefix(w.GetKey(), "source.") && w.GetKey() != "source.ip") {
			c.errorf(at+".key", "is %s, which is not yet known when the action CUSTOM decides: remove the condition", field.Quote(w.GetKey()))
		}
	}
	switch {
	case action == securityv1beta1.AuthorizationPolicy_DENY && onlyHTTP(r):
		c.warnf(path, "has attributes of HTTP only, so on TCP ports it denies everything: add to.operation.ports")
	case custom && onlyHTTP(r):
		c.warnf(path, "has attributes of HTTP only, so on TCP ports it matches everything: add to.operation.ports")
	}
}

// attribute is one list of a source or operation.
type attribute struct {
	name   string
	values []string
	http   bool
}

func sourceAttributes(s *securityv1beta1.Source) []attribute {
	return []attribute{
		{"principals", s.GetPrincipals(), false},
		{"notPrincipals", s.GetNotPrincipals(), false},
		{"requestPrincipals", s.GetRequestPrincipals(), true},
		{"notRequestPrincipals", s.GetNotRequestPrincipals(), true},
		{"namespaces", s.GetNamespaces(), false},
		{"notNamespaces", s.GetNotNamespaces(), false},
		{"trustDomains", s.GetTrustDomains(), false},
		{"notTrustDomains", s.GetNotTrustDomains(), false},
		{"serviceAccounts", s.GetServiceAccounts(), false},
		{"notServiceAccounts", s.GetNotServiceAccounts(), false},
		{"ipBlocks", s.GetIpBlocks(), false},
		{"notIpBlocks", s.GetNotIpBlocks(), false},
		{"remoteIpBlocks", s.GetRemoteIpBlocks(), false},
		{"notRemoteIpBlocks", s.GetNotRemoteIpBlocks(), false},
	}
}

func operationAttributes(o *securityv1beta1.Operation) []attribute {
	return []attribute{
		{"hosts", o.GetHosts(), true},
		{"notHosts", o.GetNotHosts(), true},
		{"ports", o.GetPorts(), false},
		{"notPorts", o.GetNotPorts(), false},
		{"methods", o.GetMethods(), true},
		{"notMethods", o.GetNotMethods(), true},
		{"paths", o.GetPaths(), true},
		{"notPaths", o.GetNotPaths(), true},
	}
}

// attributes checks that there is a value, and that none is empty.
func (c *checker) attributes(list []attribute, path string) {
	n := 0
	for _, a := range list {
		n += len(a.values)
		for i, v := range a.values {
			if v == "" {
				c.errorf(field.Index(path+"."+a.name, i), "is empty: write a value, or remove it")
			}
		}
	}
	if n == 0 {
		c.errorf(path, "is empty: write at least one of its fields, such as %s", list[0].name)
	}
}

func (c *checker) policySource(s *securityv1beta1.Source, path string) {
	c.attributes(sourceAttributes(s), path)
	for name, blocks := range field.Sorted(map[string][]string{
		"ipBlocks": s.GetIpBlocks(), "notIpBlocks": s.GetNotIpBlocks(),
		"remoteIpBlocks": s.GetRemoteIpBlocks(), "notRemoteIpBlocks": s.GetNotRemoteIpBlocks(),
	}) {
		for i, b := range blocks {
			if b != "" {
				c.ipRange(b, field.Index(path+"."+name, i))
			}
		}
	}
	for name, principals := range field.Sorted(map[string][]string{"principals": s.GetPrincipals(), "notPrincipals": s.GetNotPrincipals()}) {
		for i, p := range principals {
			if rest, ok := strings.CutPrefix(p, "spiffe://"); ok {
				c.warnf(field.Index(path+"."+name, i), "is %s, which no identity matches: write it without the scheme, %s", field.Quote(p), field.Quote(rest))
			}
		}
	}
	for name, domains := range field.Sorted(map[string][]string{"trustDomains": s.GetTrustDomains(), "notTrustDomains": s.GetNotTrustDomains()}) {
		for i, d := range domains {
			at := field.Index(path+"."+name, i)
			c.oneWildcard(d, at)
			if strings.Contains(d, "/") {
				c.errorf(at, "is %s: a trust domain has no \"/\"; for whole identities write principals", field.Quote(d))
			}
		}
	}
	accounts := len(s.GetServiceAccounts())+len(s.GetNotServiceAccounts()) > 0
	if accounts && len(s.GetPrincipals())+len(s.GetNotPrincipals())+len(s.GetNamespaces())+len(s.GetNotNamespaces()) > 0 {
		c.errorf(path, "has serviceAccounts beside principals or namespaces: write one or the other")
	}
	c.serviceAccounts(s.GetServiceAccounts(), path+".serviceAccounts")
	c.serviceAccounts(s.GetNotServiceAccounts(), path+".notServiceAccounts")
}

// oneWildcard checks a value that may begin or end with a wildcard.
func (c *checker) oneWildcard(s, path string) {
	if n := strings.Count(s, "*"); n > 1 || n == 1 && s[0] != '*' && s[len(s)-1] != '*' {
		c.errorf(path, "is %s: one \"*\" is allowed, at the start or the end", field.Quote(s))
	}
}

func (c *checker) serviceAccounts(list []string, path string) {
	const most = 16
	if len(list) > most {
		c.errorf(path, "has %d entries: at most %d are allowed", len(list), most)
	}
	const longest = 320
	for i, s := range list {
		namespace, name, both := strings.Cut(s, "/")
		if !both {
			name = namespace
		}
		switch at := field.Index(path, i); {
		case s == "":
		case namespace == "" || name == "" || strings.Contains(name, "/") || strings.Contains(s, "*") || len(s) > longest:
			c.errorf(at, "is %s: write the name of a service account, or namespace/name; wildcards are not allowed", field.Quote(s))
		case both && DNSLabelFault(namespace) != "" || SubdomainFault(name) != "":
			c.warnf(at, "is %s, which is not the name of a service account and matches no identity of Kubernetes: write a name, or namespace/name", field.Quote(s))
		}
	}
}

// customSource refuses what is not known when an external authorizer is
// asked: it is before the filters that find it out.
func (c *checker) customSource(s *securityv1beta1.Source, path string) {
	for _, a := range sourceAttributes(s) {
		if len(a.values) > 0 && !strings.HasSuffix(strings.ToLower(a.name), "ipblocks") {
			c.errorf(path+"."+a.name, "is set, which is not yet known when the action CUSTOM decides: remove it")
		}
	}
}

// standardMethods are the methods of requests that policies name. It is never written to.
var standardMethods = [...]string{"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}

func (c *checker) policyOperation(o *securityv1beta1.Operation, path string) {
	c.attributes(operationAttributes(o), path)
	c.portTexts(o.GetPorts(), path+".ports")
	c.portTexts(o.GetNotPorts(), path+".notPorts")
	for name, methods := range field.Sorted(map[string][]string{"methods": o.GetMethods(), "notMethods": o.GetNotMethods()}) {
		for i, m := range methods {
			if upper := strings.ToUpper(m); m != upper && slices.Contains(standardMethods[:], strings.Trim(upper, "*")) {
				c.warnf(field.Index(path+"."+name, i), "is %s, which no request has: methods are in capital letters; write %s", field.Quote(m), upper)
			}
		}
	}
	for name, paths := range field.Sorted(map[string][]string{"paths": o.GetPaths(), "notPaths": o.GetNotPaths()}) {
		for i, p := range paths {
			if p != "" && p[0] != '/' && p[0] != '*' && p[0] != '{' {
				c.warnf(field.Index(path+"."+name, i), "is %s, which no request has: paths begin with a slash; write %s", field.Quote(p), field.Quote("/"+p))
			}
			if strings.Contains(p, "{*}") || strings.Contains(p, "{**}") {
				c.pathTemplate(p, field.Index(path+"."+name, i))
			}
		}
	}
}

func (c *checker) portTexts(list []string, path string) {
	for i, s := range list {
		if n, err := strconv.ParseUint(s, 10, 32); s != "" && (err != nil || n == 0 || n > maxPort) {
			c.errorf(field.Index(path, i), "is %s: a port is a number between 1 and 65535", field.Quote(s))
		}
	}
}

// pathTemplate checks a path with {*} (one segment) or {**} (any number).
func (c *checker) pathTemplate(s, path string) {
	rest := false
	for segment := range strings.SplitSeq(s, "/") {
		switch {
		case rest:
			c.errorf(path, "is %s: {**} must be the last part with a wildcard, and alone in it", field.Quote(s))
			return
		case segment == "{**}":
			rest = strings.Count(s, "{") > strings.Count(s[:strings.Index(s, "{**}")], "{")+1
		case segment == "{*}":
		case strings.ContainsAny(segment, "{}*"):
			c.errorf(path, "is %s: in a path with {*} or {**} each must be alone between two \"/\", and no other wildcard is allowed", field.Quote(s))
			return
		}
	}
}

// conditions are the keys of when; those with true take a key in brackets.
var conditions = map[string]bool{
	"request.headers": true, "request.auth.claims": true, "experimental.envoy.filters": true,
	"source.ip": false, "remote.ip": false, "source.namespace": false, "source.principal": false, "source.serviceAccount": false, "source.trustDomain": false,
	"request.auth.principal": false, "request.auth.audiences": false, "request.auth.presenter": false,
	"destination.ip": false, "destination.port": false, "connection.sni": false,
}

func (c *checker) condition(w *securityv1beta1.Condition, path string) {
	name, bracket, hasBracket := strings.Cut(w.GetKey(), "[")
	lookup := name
	if strings.HasPrefix(name, "experimental.envoy.filters.") {
		lookup = "experimental.envoy.filters"
	}
	inBrackets, known := conditions[lookup]
	switch {
	case w.GetKey() == "":
		c.errorf(path+".key", "is missing: write an attribute such as source.ip or request.headers[x-user]")
	case !known && c.full():
		c.unlisted++
	case !known:
		var names []string
		for k := range field.Sorted(conditions) {
			names = append(names, k)
		}
		hint := field.DidYouMean(name, names)
		if hint == "" {
			hint = ": write one of " + strings.Join(names, ", ")
		}
		c.errorf(path+".key", "is %s, which is not an attribute%s", field.Quote(w.GetKey()), hint)
	case inBrackets && (!strings.HasSuffix(bracket, "]") || len(bracket) == 1):
		c.errorf(path+".key", "is %s: write the name in brackets, as in %s[name]", field.Quote(w.GetKey()), name)
	case !inBrackets && hasBracket:
		c.errorf(path+".key", "is %s: %s has no brackets; remove them", field.Quote(w.GetKey()), name)
	}
	if len(w.GetValues())+len(w.GetNotValues()) == 0 {
		c.errorf(path, "has neither values nor notValues: write one of them")
	}
	for _, a := range []attribute{{name: "values", values: w.GetValues()}, {name: "notValues", values: w.GetNotValues()}} {
		if w.GetKey() == "source.serviceAccount" {
			c.serviceAccounts(a.values, path+"."+a.name)
		}
		for i, v := range a.values {
			at := field.Index(path+"."+a.name, i)
			switch {
			case v == "":
				c.errorf(at, "is empty: write a value, or remove it")
			case w.GetKey() == "source.trustDomain":
				if c.oneWildcard(v, at); strings.Contains(v, "/") {
					c.warnf(at, "is %s, which no identity has: a trust domain has no \"/\"; for whole identities write source.principal", field.Quote(v))
				}
			case w.GetKey() == "destination.port":
				c.portTexts([]string{v}, path+"."+a.name)
			case strings.HasSuffix(w.GetKey(), ".ip"):
				c.ipRange(v, at)
			}
		}
	}
}

// onlyHTTP reports whether a rule looks at HTTP only.
func onlyHTTP(r *securityv1beta1.Rule) bool {
	http, tcp := false, false
	see := func(list []attribute) {
		for _, a := range list {
			http = http || len(a.values) > 0 && a.http
			tcp = tcp || len(a.values) > 0 && !a.http
		}
	}
	for _, f := range r.GetFrom() {
		see(sourceAttributes(f.GetSource()))
	}
	for _, t := range r.GetTo() {
		see(operationAttributes(t.GetOperation()))
	}
	for _, w := range r.GetWhen() {
		see([]attribute{{values: []string{""}, http: strings.HasPrefix(w.GetKey(), "request.")}})
	}
	return http && !tcp
}

// targets say what a policy is for.
type targets struct {
	selector *typev1beta1.WorkloadSelector
	ref      *typev1beta1.PolicyTargetReference
	refs     []*typev1beta1.PolicyTargetReference
	// anyKind means that other kinds than those of [targetKinds] have no effect, and are no error.
	anyKind bool
}

// targets checks the selector and the references of a policy, of which there
// may be one sort only.
func (c *checker) targets(t targets) {
	c.workloads(t.selector)
	n := 0
	for _, set := range []bool{t.selector != nil, t.ref != nil, len(t.refs) > 0} {
		if set {
			n++
		}
	}
	if n > 1 {
		c.errorf("spec", "has more than one of selector, targetRef and targetRefs: keep one of them")
	}
	const most = 16
	if len(t.refs) > most {
		c.errorf("spec.targetRefs", "has %d entries: at most %d are allowed", len(t.refs), most)
	}
	if t.ref != nil {
		c.targetRef(t.ref, false, "spec.targetRef")
	}
	for i, r := range t.refs {
		c.targetRef(r, t.anyKind, field.Index("spec.targetRefs", i))
	}
}

// targetKinds are what policies can be for.
var targetKinds = map[string]bool{
	"gateway.networking.k8s.io/Gateway": true, "gateway.networking.k8s.io/GatewayClass": true,
	"/Service": true, "core/Service": true, "networking.istio.io/ServiceEntry": true,
}

func (c *checker) targetRef(r *typev1beta1.PolicyTargetReference, anyKind bool, path string) {
	c.fault(path+".group", typeRule[gatewayv1.Group]().fault(r.GetGroup()))
	c.fault(path+".kind", typeRule[gatewayv1.Kind]().fault(r.GetKind()))
	c.fault(path+".name", typeRule[gatewayv1.ObjectName]().fault(r.GetName()))
	if !targetKinds[r.GetGroup()+"/"+r.GetKind()] {
		report := c.errorf
		if anyKind {
			report = c.warnf
		}
		report(path, "is of the kind %s of the group %s: a policy is for a Gateway or GatewayClass of gateway.networking.k8s.io, a Service, or a ServiceEntry of networking.istio.io",
			field.Quote(r.GetKind()), field.Quote(r.GetGroup()))
	}
	if ns := r.GetNamespace(); ns != "" {
		c.errorf(path+".namespace", "is %s: the target of a policy must be in its namespace; remove it", field.Quote(ns))
	}
}

// workloads checks a selector.
func (c *checker) workloads(s *typev1beta1.WorkloadSelector) {
	const path, most = "spec.selector.matchLabels", 4096
	c.selector(s != nil, s.GetMatchLabels(), path)
	if n := len(s.GetMatchLabels()); n > most {
		c.errorf(path, "has %d entries: at most %d are allowed", n, most)
	}
}
