// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	secretsKind       = "Secrets"
	remoteSelector    = "istio/multiCluster=true"
	defaultRemoteWait = 30 * time.Second
)

// RemoteConfig configures the discovery of other clusters. Secrets with the label
// istio/multiCluster=true in the namespace of the control plane contain the kubeconfigs, keyed by
// cluster name.
type RemoteConfig struct {
	// On enables reading these Secrets. It requires permission to list and watch them.
	On bool
	// Allowed are the features of a kubeconfig that may read local files or run programs: exec,
	// tokenFile, clientCertificate, clientKey, certificateAuthority, or the name of an auth
	// provider. Kubeconfigs with other such features are rejected.
	Allowed []string
	// Wait is how long the start waits for other clusters; zero means 30 s.
	Wait time.Duration
	// QPS and Burst limit the requests to each cluster; zero means the values of Config.
	QPS   float32
	Burst int
}

// remotes are the clusters defined by Secrets.
type remotes struct {
	wake chan struct{} // capacity 1; a token means that wanted changed
	// wanted and known are guarded by the registry's mutex; known are the clusters by name.
	wanted map[types.NamespacedName]*secretRecord
	known  map[string]knownCluster
	// running is used by a single goroutine.
	running map[string]*remote
}

// secretRecord is the retained part of a Secret: kubeconfigs by cluster.
type secretRecord struct{ kubeconfigs map[string][]byte }

func (r *secretRecord) equal(o *secretRecord) bool {
	return maps.EqualFunc(r.kubeconfigs, o.kubeconfigs, bytes.Equal)
}

// remote is another cluster that is being followed.
type remote struct {
	kubeconfig []byte
	following  *following
	stop       context.CancelFunc
	done       chan struct{}
}

// knownCluster is a cluster that is being followed, or that a Secret names. Its following is nil if
// it never could be, for the reason refused.
type knownCluster struct {
	secret    string
	following *following
	refused   string
}

// ClusterState is a cluster. Secret is "namespace/name" of its kubeconfig, empty for the own cluster;
// Status is "synced" or "syncing", or why the cluster or a kind of its objects cannot be read.
type ClusterState struct{ ID, Secret, Status string }

// Clusters lists the clusters by name; the own one is the first.
func (r *Registry) Clusters() []ClusterState {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]ClusterState, 0, len(r.remotes.known))
	for id, one := range r.remotes.known {
		status := one.refused
		if status == "" {
			status = one.following.status()
		}
		list = append(list, ClusterState{ID: id, Secret: one.secret, Status: status})
	}
	slices.SortFunc(list, func(a, b ClusterState) int {
		return cmp.Or(cmp.Compare(min(1, len(a.Secret)), min(1, len(b.Secret))), strings.Compare(a.ID, b.ID))
	})
	return list
}

// status returns the status of [ClusterState]. The caller holds the mutex.
func (f *following) status() string {
	for _, kind := range slices.Sorted(maps.Keys(f.faults)) {
		if reason := f.faults[kind]; reason != "" {
			return kind + ": " + reason
		}
	}
	select {
	case <-f.synced:
		return "synced"
	default:
		return "syncing"
	}
}

// followSecrets creates the reflector for the Secrets.
func (r *Registry) followSecrets(f *following, client *Client) {
	secrets := client.api.secrets(r.cfg.Namespace)
	follow(f, &kind[*corev1.Secret, secretRecord, *secretRecord]{
		name: secretsKind,
		trim: func(o *corev1.Secret) { trimMeta(&o.ObjectMeta); o.Annotations = nil },
		read: func(o *corev1.Secret) *secretRecord { return &secretRecord{kubeconfigs: o.Data} },
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = remoteSelector
			return secrets.List(ctx, o)
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = remoteSelector
			return secrets.Watch(ctx, o)
		},
		set: func(n types.NamespacedName, s *secretRecord) bool {
			if s == nil {
				delete(r.remotes.wanted, n)
			} else {
				r.remotes.wanted[n] = s
			}
			select {
			case r.remotes.wake <- struct{}{}:
			default: // a token is already pending
			}
			return true
		},
	}, &corev1.Secret{})
}

// followRemotes starts and stops the other clusters until ctx is done. It closes opened once the
// initial clusters were listed or their wait time is over.
func (r *Registry) followRemotes(ctx context.Context, local *following, opened chan<- struct{}) error {
	var waiting sync.WaitGroup
	defer func() {
		waiting.Wait()
		for _, one := range r.remotes.running {
			<-one.done
		}
	}()
	select {
	case <-ctx.Done():
		return nil
	case <-local.synced:
	}
	r.reconcile(ctx)
	first := slices.Collect(maps.Values(r.remotes.running))
	waiting.Go(func() {
		defer close(opened)
		timeout := time.NewTimer(cmp.Or(r.cfg.Remote.Wait, defaultRemoteWait))
		defer timeout.Stop()
		for _, one := range first {
			select {
			case <-ctx.Done():
				return
			case <-one.done: // the cluster is not wanted any more
			case <-one.following.synced:
			case <-timeout.C:
				r.log.Warn("a cluster was not read in time; the others are served without it", "source", one.following.member.id)
				return
			}
		}
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.remotes.wake:
			r.reconcile(ctx)
		}
	}
}

// reconcile starts the wanted clusters that are not running and stops those that are not wanted.
func (r *Registry) reconcile(ctx context.Context) {
	wanted := map[string][]byte{}
	from := map[string]types.NamespacedName{}
	r.mu.Lock()
	for _, secret := range slices.SortedFunc(maps.Keys(r.remotes.wanted), compareNames) {
		for id, kubeconfig := range r.remotes.wanted[secret].kubeconfigs {
			if _, twice := wanted[id]; twice || id == r.cfg.Cluster {
				r.log.Warn("kubeconfig ignored: a cluster of this name already exists", "source", id, "namespace", secret.Namespace, "name", secret.Name)
				continue
			}
			wanted[id], from[id] = kubeconfig, secret
		}
	}
	r.mu.Unlock()
	refused := map[string]string{}
	for id, one := range r.remotes.running {
		if _, ok := wanted[id]; !ok {
			one.stop()
			<-one.done
			delete(r.remotes.running, id)
			r.leave(id)
		}
	}
	for id, kubeconfig := range wanted {
		one := r.remotes.running[id]
		if one != nil && bytes.Equal(kubeconfig, one.kubeconfig) {
			continue
		}
		client, err := r.remoteClient(kubeconfig)
		if err != nil {
			refused[id] = err.Error()
			r.log.Error("a kubeconfig cannot be used; an older one of the cluster stays in use", "source", id, "namespace", from[id].Namespace, "name", from[id].Name, "err", err)
			continue
		}
		if one != nil {
			one.stop()
			<-one.done
		}
		r.run(ctx, id, kubeconfig, client)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.remotes.known, func(id string, _ knownCluster) bool { return id != r.cfg.Cluster })
	for id, secret := range from {
		one := knownCluster{secret: secret.String(), refused: refused[id]}
		if running := r.remotes.running[id]; running != nil {
			one.following = running.following
		}
		r.remotes.known[id] = one
	}
}

// run starts following another cluster.
func (r *Registry) run(ctx context.Context, id string, kubeconfig []byte, client *Client) {
	ctx, stop := context.WithCancel(ctx)
	one := &remote{kubeconfig: kubeconfig, following: r.join(id), stop: stop, done: make(chan struct{})}
	r.remotes.running[id] = one
	go func() {
		defer close(one.done)
		var running sync.WaitGroup
		running.Go(func() { r.follow(ctx, one.following, client) })
		select {
		case <-ctx.Done():
		case <-one.following.synced:
			r.log.Info("a cluster is read", "source", id)
			r.cfg.OnChange(model.Change{All: true})
		}
		running.Wait()
	}()
}

// leave removes a cluster.
func (r *Registry) leave(id string) {
	r.mu.Lock()
	delete(r.members, id)
	clear(r.merged)
	r.mu.Unlock()
	r.log.Info("a cluster is no longer read", "source", id)
	r.cfg.OnChange(model.Change{All: true})
}

// remoteClient returns a client for a kubeconfig. Its errors do not quote the kubeconfig.
func (r *Registry) remoteClient(kubeconfig []byte) (*Client, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, errors.New("the value is not a kubeconfig: write one that kubectl can use")
	}
	if err := harmless(config, r.cfg.Remote.Allowed); err != nil {
		return nil, err
	}
	restConfig, err := clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, errors.New("the kubeconfig names no cluster and user: set its current-context to a context that has both")
	}
	restConfig.UserAgent = "outrigger-control"
	restConfig.ContentType = "application/vnd.kubernetes.protobuf"
	restConfig.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	transport, err := rest.HTTPClientFor(restConfig)
	if err != nil {
		return nil, errUnusable
	}
	api, err := newAPI(restConfig, transport, cmp.Or(r.cfg.Remote.QPS, defaultQPS), cmp.Or(r.cfg.Remote.Burst, defaultBurst))
	if err != nil {
		return nil, errUnusable
	}
	client := &Client{api: api, log: r.log}
	if r.cfg.MCS.Discovery {
		if client.objects, err = untyped(restConfig, transport, cmp.Or(r.cfg.Remote.QPS, defaultQPS), cmp.Or(r.cfg.Remote.Burst, defaultBurst)); err != nil {
			return nil, errUnusable
		}
	}
	return client, nil
}

var errUnusable = errors.New("no connection can be made with the kubeconfig: check its server, certificates and auth provider")

// harmless returns an error for a kubeconfig that would make this process read files or run
// programs, because anyone who can write the Secret could exploit that.
func harmless(config *clientcmdapi.Config, allowed []string) error {
	refuse := func(way string) error {
		if slices.Contains(allowed, way) {
			return nil
		}
		return fmt.Errorf("the kubeconfig uses %s, which is refused: put the value itself into it, or add %s in PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS", way, way)
	}
	var errs []error
	check := func(used bool, way string) {
		if used {
			errs = append(errs, refuse(way))
		}
	}
	for _, user := range config.AuthInfos {
		check(user.Exec != nil, "exec")
		check(user.TokenFile != "", "tokenFile")
		check(user.ClientCertificate != "", "clientCertificate")
		check(user.ClientKey != "", "clientKey")
		if user.AuthProvider != nil {
			check(true, user.AuthProvider.Name)
		}
	}
	for _, cluster := range config.Clusters {
		check(cluster.CertificateAuthority != "", "certificateAuthority")
	}
	return errors.Join(errs...)
}
