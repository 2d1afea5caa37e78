package vpa

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/controllers/source"
	"carob/internal/core/workload/vpa"
)

// saveCheckpoints stores checkpoints, and removes those of deleted autoscalers.
func (c *Controller) saveCheckpoints(ctx context.Context, targets []vpa.Target) {
	log, writes := klog.FromContext(ctx), map[string][]func(){}
	names := map[types.UID]named{}
	for _, t := range targets {
		names[t.VPA.UID] = c.names[t.VPA.UID]
	}
	c.names = names
	for _, t := range targets {
		v := t.VPA
		for _, p := range c.model.Checkpoints(vpa.Name{Namespace: v.Namespace, Name: v.Name}, time.Now()) {
			p.Name = c.nameOf(v, p.Spec, targets)
			writes[v.Namespace] = append(writes[v.Namespace], func() {
				if ctx.Err() != nil {
					return
				}
				if err := c.store.save(ctx, &p); err != nil {
					log.V(1).Info("A checkpoint was not stored", "vpa", klog.KObj(v), "container",
						p.Spec.ContainerName, "err", err)
				}
			})
		}
	}
	orphans := time.Since(c.orphans) >= orphansEvery && c.removeOrphans(ctx, writes)
	if c.saves.run(ctx, writes) && orphans {
		c.orphans = time.Now()
	}
}

// removeOrphans adds the removals of checkpoints without autoscalers. It returns false if it can't read them.
func (c *Controller) removeOrphans(ctx context.Context, writes map[string][]func()) bool {
	log := klog.FromContext(ctx)
	stored, err := c.store.checkpoints(ctx)
	if err != nil {
		log.V(1).Info("Checkpoints cannot be read", "err", err)
		return false
	}
	for i := range stored {
		p := &stored[i]
		if source.Get[*vpa.VerticalPodAutoscaler](c.VPAs, p.Namespace+"/"+p.Spec.VPAObjectName) != nil {
			continue
		}
		writes[p.Namespace] = append(writes[p.Namespace], func() {
			if ctx.Err() != nil {
				return
			}
			if err := c.store.remove(ctx, p); err != nil && !apierrors.IsNotFound(err) {
				log.V(1).Info("A checkpoint without autoscaler was not removed", "checkpoint", klog.KObj(p), "err", err)
			}
		})
	}
	return true
}

// nameOf returns the name of a checkpoint, unique per container.
func (c *Controller) nameOf(v *vpa.VerticalPodAutoscaler, s vpa.CheckpointSpec, targets []vpa.Target) string {
	mine := c.names[v.UID]
	if mine == nil {
		mine = named{}
		c.names[v.UID] = mine
	}
	if mine[s.ContainerName] == "" {
		mine[s.ContainerName] = vpa.CheckpointName(s, func(name string) bool {
			for _, t := range targets {
				for container, other := range c.names[t.VPA.UID] {
					if t.VPA.Namespace == v.Namespace && other == name &&
						(t.VPA.UID != v.UID || container != s.ContainerName) {
						return true
					}
				}
			}
			return false
		})
	}
	return mine[s.ContainerName]
}
