// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// day is a mesh whose objects and services change on a simulated clock, and the logs of its control
// plane.
type day struct {
	t         testing.TB
	rand      *rand.Rand
	now       time.Time
	store     *store
	mesh      *meshv1alpha1.MeshConfig
	pods      *pods
	restless  []model.Key // services with a Pod that crashes all the time
	logs      []*Log      // of objects, of services
	due       []time.Time // when a log must write what it delayed
	generated int         // names of Pods
}

// pods is a platform with services.
type pods struct {
	registry.Platform
	services map[model.Key]*registry.PlatformService
}

func (p *pods) Services() []*registry.PlatformService { return slices.Collect(maps.Values(p.services)) }

func (p *pods) Service(namespace, name string) *registry.PlatformService {
	return p.services[model.Key{Kind: model.KubernetesService, Namespace: namespace, Name: name}]
}

// newDay returns a mesh of services in a quarter as many namespaces, with five proxies for each on
// average: most services have a few, some have many. Its logs have files of a size; 0 means the default.
func newDay(t testing.TB, services int, size int64) *day {
	t.Helper()
	d := &day{
		t: t, rand: rand.New(rand.NewPCG(1, 2)), now: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC),
		store: &store{objects: map[model.Key]*model.Config{}}, pods: &pods{services: map[model.Key]*registry.PlatformService{}},
		mesh: meshconfig.Default(),
	}
	for i := range services {
		n := 2 + i%4 // 3.5 on average
		if i%20 == 0 {
			n += 30
		}
		d.deploy(i, services, n)
	}
	dir := t.TempDir()
	d.logs = []*Log{
		d.open(Config{Dir: filepath.Join(dir, "objects"), FileSize: size, Source: WithMesh(Objects(d.store), func() MeshSettings { return MeshSettings{Mesh: d.mesh} })}),
		d.open(Config{Dir: filepath.Join(dir, "services"), FileSize: size, Source: Services(d.pods)}),
	}
	d.due = make([]time.Time, len(d.logs))
	d.note(model.Change{All: true})
	return d
}

// open opens a log that runs on the clock of the day.
func (d *day) open(cfg Config) *Log {
	cfg.Logger = slog.New(slog.DiscardHandler)
	l := New(cfg)
	l.now = func() time.Time { return d.now }
	err := os.MkdirAll(cfg.Dir, 0o700)
	if err == nil {
		err = l.open()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = l.file.Close() }) // the test is over
	return l
}

// deploy adds service i with its objects and Pods.
func (d *day) deploy(i, services, replicas int) {
	namespace, name := fmt.Sprintf("team-%d", i%max(1, services/4)), fmt.Sprintf("service-%d", i)
	key := model.Key{Kind: model.KubernetesService, Namespace: namespace, Name: name}
	d.pods.services[key] = &registry.PlatformService{
		Name: name, Selector: map[string]string{"app": name}, Targets: []registry.TargetPort{{Name: "http"}, {Number: 9090}},
		Service: &model.Service{
			ServiceKey: model.ServiceKey{Hostname: name + "." + namespace + ".svc.cluster.local", Namespace: namespace}, Created: d.now,
			Ports:            []model.Port{{Name: "http", Number: 80, Protocol: "HTTP"}, {Name: "grpc", Number: 9090, Protocol: "GRPC"}},
			ClusterAddresses: map[string][]string{"one": {fmt.Sprintf("10.96.%d.%d", i/250, i%250)}}, Source: key, Registry: model.RegistryKubernetes,
		},
	}
	for range replicas {
		d.scale(key, 1, "first")
	}
	if i%70 == 7 {
		d.restless = append(d.restless, key)
	}
	d.configure(model.VirtualService, namespace, name)
	d.configure(model.DestinationRule, namespace, name)
	d.configure(model.AuthorizationPolicy, namespace, name)
}

// configure stores a new version of an object of a service.
func (d *day) configure(kind model.Kind, namespace, name string) model.Key {
	key := model.Key{Kind: kind, Namespace: namespace, Name: name}
	c := &model.Config{
		Key: key, APIVersion: "networking.istio.io/v1", Source: "git/" + namespace + "/" + name + ".yaml:1", Created: d.now,
		Labels:      map[string]string{"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": name + "-1.4.2", "app.kubernetes.io/part-of": namespace},
		Annotations: map[string]string{"deploy.example.com/commit": fmt.Sprintf("%016x%016x", d.rand.Uint64(), d.rand.Uint64())},
	}
	host := name + "." + namespace + ".svc.cluster.local"
	switch kind {
	case model.VirtualService:
		spec := &networkingv1alpha3.VirtualService{Hosts: []string{host}}
		weight := d.rand.Int32N(100)
		for _, path := range []string{"/api/v1", "/api/v2", "/"} {
			spec.Http = append(spec.Http, &networkingv1alpha3.HTTPRoute{
				Name:  path,
				Match: []*networkingv1alpha3.HTTPMatchRequest{{Uri: &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: path}}}},
				Route: []*networkingv1alpha3.HTTPRouteDestination{
					{Destination: &networkingv1alpha3.Destination{Host: host, Subset: "stable"}, Weight: 100 - weight},
					{Destination: &networkingv1alpha3.Destination{Host: host, Subset: "canary"}, Weight: weight},
				},
				Retries: &networkingv1alpha3.HTTPRetry{Attempts: 3, RetryOn: "connect-failure,refused-stream,unavailable"},
			})
		}
		c.Spec = spec
	case model.DestinationRule:
		c.Spec = &networkingv1alpha3.DestinationRule{
			Host: host, TrafficPolicy: &networkingv1alpha3.TrafficPolicy{ConnectionPool: &networkingv1alpha3.ConnectionPoolSettings{
				Http: &networkingv1alpha3.ConnectionPoolSettings_HTTPSettings{Http2MaxRequests: 100 + d.rand.Int32N(1000)},
			}},
			Subsets: []*networkingv1alpha3.Subset{{Name: "stable", Labels: map[string]string{"version": "v1"}}, {Name: "canary", Labels: map[string]string{"version": "v2"}}},
		}
	case model.AuthorizationPolicy:
		spec := &securityv1beta1.AuthorizationPolicy{Selector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": name}}}
		for range 3 {
			spec.Rules = append(spec.Rules, &securityv1beta1.Rule{
				From: []*securityv1beta1.Rule_From{{Source: &securityv1beta1.Source{Principals: []string{
					fmt.Sprintf("cluster.local/ns/team-%d/sa/service-%d", d.rand.IntN(50), d.rand.IntN(200)),
				}}}},
				To: []*securityv1beta1.Rule_To{{Operation: &securityv1beta1.Operation{Methods: []string{"GET", "POST"}, Paths: []string{"/api/*", "/healthz"}}}},
			})
		}
		c.Spec = spec
	}
	d.store.objects[key] = c
	return key
}

// scale adds n Pods of a ReplicaSet to a service, or removes its oldest -n.
func (d *day) scale(key model.Key, n int, replicaSet string) {
	svc := *d.pods.services[key]
	if n < 0 {
		svc.Endpoints = svc.Endpoints[min(-n*2, len(svc.Endpoints)):]
	}
	svc.Endpoints = slices.Clone(svc.Endpoints)
	for range max(n, 0) {
		d.generated++
		i := d.generated
		labels := map[string]string{
			"app": svc.Name, "version": "v1", "pod-template-hash": replicaSet, "service.istio.io/canonical-name": svc.Name,
			"service.istio.io/canonical-revision": "v1", "app.kubernetes.io/part-of": key.Namespace, "security.istio.io/tlsMode": "istio",
		}
		for _, port := range []uint32{80, 9090} {
			svc.Endpoints = append(svc.Endpoints, &model.Endpoint{
				Address: fmt.Sprintf("10.%d.%d.%d", 1+i>>16&63, i>>8&255, i&255), Port: 8000 + port, ServicePort: port, Namespace: key.Namespace, ServiceAccount: svc.Name,
				Labels: labels, Locality: fmt.Sprintf("region/zone-%d", i%3), Weight: 1, MutualTLS: true, Node: fmt.Sprintf("node-%d", d.rand.IntN(60)),
				Workload: fmt.Sprintf("%s-%s-%05x", svc.Name, replicaSet, d.rand.IntN(1<<20)),
			})
		}
	}
	d.pods.services[key] = &svc
}

// note records a change as a control plane does, with what the logs have delayed until now.
func (d *day) note(change model.Change) {
	for i, l := range d.logs {
		l.Note(change, d.now)
		d.write(i)
	}
}

func (d *day) write(i int) {
	wait, err := d.logs[i].write()
	if err != nil {
		d.t.Fatal(err)
	}
	if d.due[i] = (time.Time{}); wait > 0 {
		d.due[i] = d.now.Add(wait)
	}
}

// pass lets time pass.
func (d *day) pass(by time.Duration) {
	for end := d.now.Add(by); d.now.Before(end); {
		d.now = d.now.Add(min(time.Second, end.Sub(d.now)))
		for i, due := range d.due {
			if !due.IsZero() && !d.now.Before(due) {
				d.write(i)
			}
		}
	}
}

// run lets hours pass. A service rolls out each three minutes, Pod by Pod; an autoscaler adds or removes
// a Pod each minute; Pods that crash go and come each 20 s; a route or a rule for destinations changes
// each ten minutes and a policy each half hour; a release changes the objects of ten services, and the mesh
// config, each hour.
func (d *day) run(hours int) {
	keys := slices.SortedFunc(maps.Keys(d.pods.services), model.Key.Compare)
	pick := func() model.Key { return keys[d.rand.IntN(len(keys))] }
	type rollout struct {
		key        model.Key
		left       int
		replicaSet string
	}
	var rolling []rollout
	for tick := range hours * 360 { // of 10 s
		var changed []model.Key
		scale := func(key model.Key, n int, replicaSet string) {
			d.scale(key, n, replicaSet)
			key.Kind = model.KubernetesEndpoints
			changed = append(changed, key)
		}
		if tick%18 == 0 {
			key := pick()
			rolling = append(rolling, rollout{key, len(d.pods.services[key].Endpoints) / 2, fmt.Sprintf("%09x", d.rand.Uint64()>>28)})
		}
		for i := range rolling {
			scale(rolling[i].key, 1, rolling[i].replicaSet)
			scale(rolling[i].key, -1, "")
			rolling[i].left--
		}
		rolling = slices.DeleteFunc(rolling, func(r rollout) bool { return r.left <= 0 })
		if tick%6 == 0 {
			key := pick()
			scale(key, map[bool]int{true: 1, false: -1}[len(d.pods.services[key].Endpoints) <= 6], "scaled")
		}
		for _, key := range d.restless {
			scale(key, 1-tick%4/2*2, "restless") // two up, two down
		}
		if tick%60 == 0 {
			key := pick()
			changed = append(changed, d.configure([]model.Kind{model.VirtualService, model.DestinationRule}[tick/60%2], key.Namespace, key.Name))
		}
		if tick%180 == 0 {
			key := pick()
			changed = append(changed, d.configure(model.AuthorizationPolicy, key.Namespace, key.Name))
		}
		if tick%360 == 0 {
			for range 10 {
				key := pick()
				changed = append(changed, d.configure(model.VirtualService, key.Namespace, key.Name), d.configure(model.DestinationRule, key.Namespace, key.Name))
			}
		}
		what := model.NewChange(changed...)
		if what.All = tick%360 == 0; what.All {
			d.mesh = proto.CloneOf(d.mesh)
			d.mesh.ProxyHttpPort++
		}
		if len(changed) > 0 {
			d.note(what)
		}
		d.pass(10 * time.Second)
	}
}
