// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/deployment"
	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/objectstatus"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// gatewayStatusLease is the lease of the replica that writes the status of the Gateway
// API and of Ingresses. The name is Istio's.
const gatewayStatusLease = "istio-gateway-status-leader"

// conversion converts objects of the Gateway API and Ingresses to Istio's objects, which
// the other components use in addition to those of the store.
type conversion struct {
	view       gatewayapi.View
	ingress    string                                                   // namespace
	namespaces *kube.Namespaces                                         // nil without a cluster
	verdicts   *objectstatus.Verdicts                                   // nil if no status is written
	deployment *deployment.Controller                                   // nil if nothing is deployed
	lead       func(context.Context, func(context.Context) error) error // nil if all replicas write
}

// newGatewayAPI creates the conversion, unless it is off. The store must not run yet.
func (s *Server) newGatewayAPI(cfg Config) (err error) {
	if !cfg.GatewayAPI.On {
		return nil
	}
	c := &conversion{ingress: cfg.GatewayAPI.IngressNamespace}
	log := s.log.With("component", "gatewayapi")
	if s.objects.platform != nil {
		c.namespaces, err = kube.NewNamespaces(kube.NamespacesConfig{Client: s.kube, Logger: log, OnChange: func(name string) {
			s.reconvert(model.Key{Kind: gatewayapi.KubernetesNamespace, Name: name})
			s.objects.conversion.deploys(name)
		}})
		if err != nil {
			return err
		}
	}
	if s.objects.credentials != nil {
		s.objects.credentials.OnChange(func(namespace, name string) {
			s.reconvert(model.Key{Kind: gatewayapi.KubernetesSecret, Namespace: namespace, Name: name})
		})
	}
	if s.objects.roots != nil {
		s.objects.roots.OnChange(func(namespace, name string) {
			s.reconvert(model.Key{Kind: gatewayapi.KubernetesConfigMap, Namespace: namespace, Name: name})
		})
	}
	s.objects.conversion = c
	if c.lead, err = s.leader(cfg, gatewayStatusLease); err != nil {
		return err
	}
	if err := s.newDeployment(cfg, log); err != nil || !cfg.GatewayAPI.Status {
		return err
	}
	c.verdicts, err = objectstatus.NewVerdicts(objectstatus.VerdictsConfig{
		Store: s.objects.store, Merge: gatewayapi.Merge, Denied: apierrors.IsForbidden, Logger: log, Lead: c.leadBoth(),
		Limits: objectstatus.Limits{Workers: cfg.Status.Workers, QPS: cfg.Status.QPS, Burst: cfg.Status.Burst},
	})
	if err != nil {
		return err
	}
	s.objects.store.RegisterEventHandler(c.verdicts.Hear, gatewayapi.Kinds()...)
	return nil
}

// reconvert requests a push after a change outside of objects, if the conversion depends on it.
func (s *Server) reconvert(key model.Key) {
	if change := model.NewChange(key); s.objects.conversion.view.DependsOn(change) {
		s.debounce.Add(change)
	}
}

// run follows the inputs of the conversion besides the store, and writes statuses, until
// ctx is done.
func (c *conversion) run(ctx context.Context) error {
	if c == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	if c.namespaces != nil {
		g.Go(func() error { return c.namespaces.Run(ctx) }) // reads labels, feeds changes
	}
	if c.verdicts != nil {
		g.Go(func() error { return c.verdicts.Run(ctx) }) // reads results of conversions, feeds the store
	}
	if c.deployment != nil && (c.verdicts == nil || c.lead == nil) {
		g.Go(func() error { return c.deploy(ctx) }) // reads Gateways, feeds the cluster
	}
	return g.Wait()
}

// convert updates the conversion, and returns the change extended by the converted
// objects that differ.
func (s *Server) convert(change model.Change) model.Change {
	c := s.objects.conversion
	if c == nil {
		return change
	}
	if c.deployment != nil && change.Touches(model.MeshConfigKind) {
		c.deployment.Check("")
	}
	var platform registry.Platform
	if s.objects.platform != nil {
		platform = s.objects.platform
	}
	before := c.view.Result()
	change = c.view.Update(s.conversionInput(s.objects.stored, platform, s.snapshots.mesh), change)
	s.converted(before)
	return change
}

// conversionInput returns the current data for a conversion of listed objects. platform may be nil.
func (s *Server) conversionInput(list func(model.Kind) []*model.Config, platform registry.Platform, mesh *meshv1alpha1.MeshConfig) gatewayapi.Input {
	in := gatewayapi.Input{List: list, Mesh: mesh, Domain: s.snapshots.domain, IngressNamespace: s.objects.conversion.ingress}
	if platform != nil {
		in.Service = func(namespace, name string) *model.Service {
			if found := platform.Service(namespace, name); found != nil {
				return found.Service
			}
			return nil
		}
		in.Selector = func(namespace, name string) map[string]string {
			if found := platform.Service(namespace, name); found != nil {
				return found.Selector
			}
			return nil
		}
	}
	if d := s.objects.conversion.deployment; d != nil {
		in.Deployed = d.Fault
	}
	if s.objects.conversion.namespaces != nil {
		in.NamespaceLabels = s.objects.conversion.namespaces.Labels
	}
	if s.objects.credentials != nil {
		in.Certificate = s.objects.certificate
	}
	if s.objects.roots != nil {
		in.Roots = s.objects.rootsFault
	}
	return in
}

// converted passes a new result of the conversion on to those that need more than its objects.
func (s *Server) converted(before *gatewayapi.Result) {
	result := s.objects.conversion.view.Result()
	if result == before {
		return
	}
	if s.objects.rootMaps != nil {
		s.objects.rootMaps.Follow(result.ConfigMaps())
	}
	if d := s.objects.conversion.deployment; d != nil {
		for _, g := range result.AddedDiffer(before) {
			d.CheckOne(g.Namespace, g.Name)
		}
	}
}

// rootsFault returns the error of the roots in a ConfigMap. It returns nil until the ConfigMap
// has been read, so that a restart changes no status.
func (o *objects) rootsFault(namespace, name string) error {
	_, err := credentials.RootsOf(o.roots, credentials.Reference{Scheme: credentials.SchemeConfigMap, Namespace: namespace, Name: name})
	if errors.Is(err, credentials.ErrLoading) {
		return nil
	}
	if errors.Is(err, credentials.ErrNotFound) {
		select {
		case <-o.roots.Synced():
		default:
			return nil
		}
	}
	return err
}

// certificate returns the error of a Secret as the certificate of a listener. It
// returns nil until all Secrets have been read, so that a restart removes no listener.
func (o *objects) certificate(namespace, name string) error {
	_, err := credentials.KeyPairOf(o.credentials, credentials.Reference{Scheme: credentials.SchemeGateway, Namespace: namespace, Name: name})
	if errors.Is(err, credentials.ErrNotFound) {
		select {
		case <-o.credentials.Synced():
		default:
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("the Secret %s/%s: %w", namespace, name, err)
	}
	return nil
}

// granted reports whether the service account of a Gateway may read a Secret that one of its
// listeners refers to. Every caller may read the roots that an object of the Gateway API refers to.
func (o *objects) granted(_ *snapshot.Mesh, caller *authn.Caller, ref credentials.Reference) bool {
	result := o.converted()
	if result == nil {
		return false
	}
	switch ref.Scheme {
	case credentials.SchemeGateway:
		return result.Grants(caller.ID.Namespace, caller.ID.ServiceAccount, ref.Namespace, ref.Name)
	case credentials.SchemeConfigMap:
		return result.RefersTo(ref.Namespace, ref.Name)
	}
	return false
}

// stored returns the stored objects of a kind.
func (o *objects) stored(kind model.Kind) []*model.Config { return o.store.List(kind, "") }

// converted returns the newest conversion, or nil if there is none.
func (o *objects) converted() *gatewayapi.Result {
	if o.conversion == nil {
		return nil
	}
	return o.conversion.view.Result()
}

// list returns the stored and converted objects of a kind.
func (o *objects) list(kind model.Kind) []*model.Config {
	return withConverted(o.stored(kind), o.converted(), kind)
}

// withConverted returns objects of a kind and the converted ones.
func withConverted(list []*model.Config, result *gatewayapi.Result, kind model.Kind) []*model.Config {
	if result == nil || len(result.Objects[kind]) == 0 {
		return list
	}
	return append(slices.Clip(list), result.Objects[kind]...)
}

// get returns a stored or converted object.
func (o *objects) get(key model.Key) *model.Config {
	if stored := o.store.Get(key); stored != nil {
		return stored
	}
	return o.converted().Get(key)
}

// conclude assigns the problems of converted objects in a snapshot to the objects that
// users wrote, and publishes the statuses.
func (o *objects) conclude(next *snapshot.Mesh) {
	next.Problems = blame(o.converted(), next.Problems)
	if o.conversion != nil && o.conversion.verdicts != nil {
		o.conversion.verdicts.Set(o.converted().Status)
	}
}

// blame assigns the problems of converted objects to the objects that users wrote.
func blame(result *gatewayapi.Result, problems []model.Problem) []model.Problem {
	if result == nil {
		return problems
	}
	return append(result.Blame(problems), result.Problems...)
}
