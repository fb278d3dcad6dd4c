// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// observation is the state that a reconciliation of an entry is based on.
type observation struct {
	key    model.Key
	stored *model.Config // nil if there is none
	conn   *connection   // the newest connection to this replica; nil if there is none
	claim  string
	left   string
	// lasted is the time since the connection state in the entry last changed. young is the
	// remaining time for proxies to reconnect after the start.
	lasted, young time.Duration
}

// reconcile updates an entry to the connections of this replica. It returns the delay after which
// the entry must be reconciled again; 0 means only after the next event.
func (c *Controller) reconcile(ctx context.Context, key model.Key) (time.Duration, error) {
	stored := c.store.Get(key)
	c.mu.Lock()
	c.observe(key, stored)
	it := c.work[key]
	s := observation{
		key: key, stored: stored, conn: it.newest(), claim: it.claim, left: it.left,
		lasted: time.Since(it.since), young: time.Until(c.started.Add(returning)),
	}
	c.mu.Unlock()
	if s.conn == nil {
		return c.release(ctx, s)
	}
	return c.hold(ctx, s)
}

// hold reconciles the entry of a proxy that is connected to this replica.
func (c *Controller) hold(ctx context.Context, s observation) (time.Duration, error) {
	peer := s.conn.peer
	group := c.store.Get(groupOf(peer.Proxy))
	mine := isRegistered(s.stored) && s.owns()
	if kind, why := forbidden(peer, group); why != "" {
		c.refuseOnce(s, kind, why)
		if mine {
			return 0, c.remove(ctx, s, why)
		}
		return 0, nil
	}
	if s.stored != nil && !mine {
		c.refuseOnce(s, refusedName, fmt.Sprintf("%s is the entry of %s, which is not this proxy: remove it if it is unused", s.key, describe(s.stored)))
		return 0, nil
	}
	now := entryOf(s.key, peer, group)
	if other := c.conflicting(s, now); other != nil {
		why := fmt.Sprintf("its address belongs to %s, the entry of %s: remove that if it is unused", other.Key, describe(other))
		c.refuseOnce(s, refusedAddress, why)
		if mine {
			return 0, c.remove(ctx, s, why)
		}
		return 0, nil
	}
	if s.stored == nil {
		return c.create(ctx, s, now)
	}
	return c.claim(ctx, s, now)
}

// owns reports whether an entry is that of the connected proxy.
func (s observation) owns() bool {
	proxy := s.conn.peer.Proxy
	return s.stored.Annotations[groupAnnotation] == proxy.AutoRegisterGroup && fits(s.stored, proxy) &&
		parse(entrySpec(s.stored).GetAddress()) == addressOf(s.conn.peer)
}

// describe describes the workload of an entry for messages.
func describe(c *model.Config) string {
	spec := entrySpec(c)
	text := fmt.Sprintf("service account %q of namespace %s at %s", spec.GetServiceAccount(), c.Namespace, spec.GetAddress())
	if !isRegistered(c) {
		text += ", which was not created by registration"
	}
	return text
}

// forbidden returns why a proxy may not be in its group. An empty reason means that it may.
func forbidden(p model.ConnectedProxy, group *model.Config) (kind, why string) {
	g := groupSpec(group)
	if g == nil {
		return refusedGroup, "its WorkloadGroup does not exist: create it"
	}
	if account := accountOf(g); account != p.Proxy.ServiceAccount {
		return refusedIdentity, fmt.Sprintf("its service account is %q, that of the workloads of the group is %q: correct spec.template.serviceAccount, or the account of the agent", p.Proxy.ServiceAccount, account)
	}
	return "", ""
}

// conflicting returns an entry that prevents the proxy's entry because it has the same address, or
// nil. If both exist already, the older one stays.
func (c *Controller) conflicting(s observation, now *model.Config) *model.Config {
	// The lock covers both the lookup and the record in blocked. Otherwise, the removal of the
	// other entry could be missed between them.
	c.mu.Lock()
	defer c.mu.Unlock()
	other := c.index.claimant(now)
	if other == nil || s.stored != nil && (!isRegistered(other) || model.Older(s.stored, other) < 0) {
		return nil
	}
	if c.blocked[other.Key] == nil {
		c.blocked[other.Key] = map[model.Key]bool{}
	}
	c.blocked[other.Key][s.key] = true
	return other
}

// refuseOnce logs and counts that a proxy is not registered, unless the reason was logged before.
func (c *Controller) refuseOnce(s observation, kind, why string) {
	c.mu.Lock()
	it := c.work[s.key]
	known := it.refusal == why
	it.refusal = why
	c.mu.Unlock()
	if !known {
		c.refuse(s.conn.peer.Proxy, kind, why)
	}
}

// create writes a new entry.
func (c *Controller) create(ctx context.Context, s observation, now *model.Config) (time.Duration, error) {
	if !c.allowed(identityOf(s.conn.peer.Proxy)) {
		c.refuseOnce(s, refusedFlood, "too many proxies of its service account connect at once; it is registered in its turn")
		return time.Second, nil
	}
	at := stamp("")
	now.Annotations[controllerAnnotation], now.Annotations[connectedAnnotation] = c.cfg.Instance, at
	err := c.write(ctx, func(ctx context.Context) error {
		_, err := c.store.Create(ctx, now)
		return err
	})
	if err != nil {
		return 0, c.refused(s, err)
	}
	c.metrics.success.Inc()
	c.claimed(s, at)
	c.log.Info("a workload is registered", "proxy", s.conn.peer.Proxy.ID, "namespace", s.key.Namespace, "name", s.key.Name)
	return 0, nil
}

// allowed reports whether an identity may create an entry now, and counts the entry against its
// limit.
func (c *Controller) allowed(id identity) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.identities[id]
	return b == nil || b.fresh.Allow()
}

// claim writes into the entry that its proxy is connected to this replica, unless it says so
// already, and applies changes of the group and of the proxy.
func (c *Controller) claim(ctx context.Context, s observation, now *model.Config) (time.Duration, error) {
	a := s.stored.Annotations
	connected := a[connectedAnnotation] != "" && a[disconnectedAnnotation] == ""
	here := connected && s.claimsIt(c.cfg.Instance)
	if connected && !here && s.conn.claimed && s.lasted < c.cfg.Orphaned {
		return c.cfg.Orphaned - s.lasted, nil // the proxy has connected to another replica since
	}
	next := s.stored.Clone()
	at := a[connectedAnnotation]
	if !here {
		at = stamp(at)
		next.Annotations[controllerAnnotation], next.Annotations[connectedAnnotation] = c.cfg.Instance, at
		delete(next.Annotations, disconnectedAnnotation)
	}
	renew(next, now)
	if config.SameContent(s.stored, next) {
		c.claimed(s, at)
		return 0, nil
	}
	if err := c.update(ctx, next); err != nil {
		return 0, c.refused(s, err)
	}
	c.metrics.updates.Inc()
	c.claimed(s, at)
	return 0, nil
}

// claimsIt reports whether an entry contains what this replica wrote. It also compares the time,
// because another replica may have the same name.
func (s observation) claimsIt(instance string) bool {
	a := s.stored.Annotations
	return s.claim != "" && a[controllerAnnotation] == instance && a[connectedAnnotation] == s.claim
}

// claimed records that this replica owns an entry.
func (c *Controller) claimed(s observation, at string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it := c.work[s.key]
	it.claim, it.left, it.refusal, s.conn.claimed = at, "", "", true
}

// refused handles the error of a write. If the entry is invalid, it reports the proxy as not
// registered and returns nil, because a retry would not help.
func (c *Controller) refused(s observation, err error) error {
	if !errors.Is(err, config.ErrInvalid) {
		return err
	}
	c.refuseOnce(s, refusedInvalid, err.Error())
	return nil
}

// release reconciles the entry of a proxy that is not connected to this replica.
func (c *Controller) release(ctx context.Context, s observation) (time.Duration, error) {
	if !isRegistered(s.stored) {
		if s.claim != "" && s.stored == nil && s.lasted < returning {
			return returning - s.lasted, nil // the entry was created, but may not be visible yet
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.work[s.key].claim = ""
		return 0, nil
	}
	a := s.stored.Annotations
	if at := a[disconnectedAnnotation]; at != "" {
		wait := c.cfg.Grace
		if at != s.left { // another replica has set the mark, and removes the entry
			wait = max(c.question(), s.lasted+s.young)
		}
		if s.lasted < wait {
			return wait - s.lasted, nil
		}
		return 0, c.remove(ctx, s, "its proxy disconnected and did not reconnect")
	}
	own := s.claimsIt(c.cfg.Instance)
	if wait := c.orphanedFor(s); !own && wait > 0 {
		return wait, nil
	}
	next, at := s.stored.Clone(), stamp("")
	delete(next.Annotations, connectedAnnotation)
	next.Annotations[disconnectedAnnotation] = at
	if err := c.update(ctx, next); err != nil {
		return 0, err
	}
	c.metrics.unregistered.Inc()
	if !own {
		c.log.Info("a workload is marked as disconnected, unless another replica of the control plane still serves it", "namespace", s.key.Namespace, "name", s.key.Name,
			"reason", "the replica that its entry names has not renewed it for a long time, or has restarted")
		return c.cfg.Grace, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.work[s.key].left = at
	return c.cfg.Grace, nil
}

// question returns the time for which a replica can claim an entry before the entry is removed.
func (c *Controller) question() time.Duration { return 2*c.cfg.Grace + slack }

// orphanedFor returns the remaining time for which the entry of a proxy that is not connected to
// this replica is trusted; 0 means that it has expired. Entries that this replica wrote before a
// restart are trusted while proxies may reconnect. Other replicas are first tested with a single
// entry: if the replica reclaims it, the replica is alive and all its entries are valid.
func (c *Controller) orphanedFor(s observation) time.Duration {
	instance := s.stored.Annotations[controllerAnnotation]
	if instance == c.cfg.Instance {
		return max(returning-s.lasted, s.young, 0)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	it, other := c.work[s.key], c.replicas[instance]
	if other == nil {
		other = &replicaState{} // the entry has changed since it was read
	}
	last := it.since
	if other.seen.After(last) {
		last = other.seen
	}
	if wait := c.cfg.Orphaned - time.Since(last); wait > 0 {
		return wait
	}
	if other.asked.After(other.seen) {
		return max(c.question()-time.Since(other.asked), 0)
	}
	other.asked = time.Now()
	return 0
}

// stamp returns a time for an annotation that differs from the previous one.
func stamp(before string) string {
	now := time.Now().UTC()
	if text := now.Format(time.RFC3339Nano); text != before {
		return text
	}
	return now.Add(time.Nanosecond).Format(time.RFC3339Nano)
}

// remove deletes the version of an entry that the decision is based on.
func (c *Controller) remove(ctx context.Context, s observation, why string) error {
	err := c.write(ctx, func(ctx context.Context) error { return c.store.Delete(ctx, s.key, s.stored.ResourceVersion) })
	if err != nil {
		return err
	}
	c.metrics.deletes.Inc()
	c.log.Info("a workload is no longer registered", "namespace", s.key.Namespace, "name", s.key.Name, "reason", why)
	return nil
}

func (c *Controller) update(ctx context.Context, next *model.Config) error {
	return c.write(ctx, func(ctx context.Context) error {
		_, err := c.store.Update(ctx, next)
		return err
	})
}

// write calls do when the rate limit allows it.
func (c *Controller) write(ctx context.Context, do func(context.Context) error) error {
	if err := c.writes.Wait(ctx); err != nil {
		return fmt.Errorf("waiting to write: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return do(ctx)
}
