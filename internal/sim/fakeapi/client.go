package fakeapi

import (
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// Client is the client of a controller: writes fail, their responses get lost, and the process ends
// between any two of them.
type Client struct {
	api  *API
	left int // writes left until the process ends
	// Done is called for each write that took effect, also if the response was lost.
	Done func(after Entry, answered bool)
}

// Client returns a client of a process that ends after a random number of writes, or never.
func (a *API) Client() *Client {
	c := &Client{api: a, left: 1 << 40, Done: func(Entry, bool) {}}
	if a.One(2) {
		c.left = a.IntN(30)
	}
	return c
}

// try does a write, with faults.
func (c *Client) try(write func() (Object, error)) (Entry, error) {
	if c.left--; c.left < 0 && !c.api.Faultless {
		return Entry{}, ErrCrash
	}
	if c.api.One(20) {
		return Entry{}, ErrRefused
	}
	o, err := write()
	if err != nil {
		return Entry{}, err
	}
	e := c.api.history[len(c.api.history)-1]
	e.Object = o
	lost := c.api.One(20)
	c.Done(e, !lost)
	if lost {
		return Entry{}, ErrLost
	}
	return e, nil
}

// Create stores a new object, unless API.Charge refuses it; ErrExists if one of its type and name exists.
func (c *Client) Create(o Object, same func(Object) bool) (Entry, error) {
	return c.try(func() (Object, error) {
		if err := c.api.Charge(o); err != nil {
			return nil, err
		}
		for _, e := range c.api.objects {
			if o.GetName() != "" && e.Object.GetName() == o.GetName() && same(e.Object) {
				return nil, ErrExists
			}
		}
		return c.api.Create(o), nil
	})
}

// Update changes an object if the stored version is that of o.
func (c *Client) Update(o Object, f func(Object)) (Entry, error) {
	return c.try(func() (Object, error) {
		e, ok := c.api.objects[o.GetUID()]
		switch {
		case !ok:
			return nil, ErrMissing
		case strconv.Itoa(e.Version) != o.GetResourceVersion():
			return nil, ErrConflict
		}
		return c.api.Change(o.GetUID(), f), nil
	})
}

// Patch changes an object at any version.
func (c *Client) Patch(uid types.UID, f func(Object)) (Entry, error) {
	return c.try(func() (Object, error) {
		if _, ok := c.api.objects[uid]; !ok {
			return nil, ErrMissing
		}
		return c.api.Change(uid, f), nil
	})
}

// PatchIf changes an object at any version that the API accepts for the patch; ErrConflict
// otherwise.
func (c *Client) PatchIf(uid types.UID, accepts func(Object) bool, f func(Object)) (Entry, error) {
	return c.try(func() (Object, error) {
		switch o := c.api.Get(uid); {
		case o == nil:
			return nil, ErrMissing
		case !accepts(o):
			return nil, ErrConflict
		}
		return c.api.Change(uid, f), nil
	})
}

// Delete deletes an object.
func (c *Client) Delete(uid types.UID, grace int64) (Entry, error) {
	return c.try(func() (Object, error) {
		o := c.api.Get(uid)
		if o == nil {
			return nil, ErrMissing
		}
		c.api.Delete(uid, grace)
		return o, nil
	})
}
