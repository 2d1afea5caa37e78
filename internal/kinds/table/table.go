package table

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Column describes one column of a kind's table.
type Column struct {
	Name string
	// Type is string if empty, otherwise integer, number, boolean, or date.
	Type string
	// Format is empty, or "name" for the column that identifies the row.
	Format string
	// Wide columns are shown with -o wide only.
	Wide bool
	// Description is the help text; Name if it is empty.
	Description string
}

// Kind defines how one kind is printed. The zero value prints name and age.
type Kind struct {
	Columns []Column
	// Row returns the cells of one object in the order of Columns. Ages are relative to now.
	Row func(obj runtime.Object, now time.Time) []any
}

// NameColumn is the first column of nearly every kind.
var NameColumn = Column{Name: "Name", Format: "name", Description: "Name must be unique within a namespace."}

// AgeColumn is the last narrow column of nearly every kind.
var AgeColumn = Column{Name: "Age", Description: "Time since the object was created."}

// Convertor implements rest.TableConvertor for one kind.
type Convertor struct {
	defs []metav1.TableColumnDefinition
	row  func(obj runtime.Object, now time.Time) []any
}

// NewConvertor prepares the column definitions of kind.
func NewConvertor(kind Kind) *Convertor {
	if kind.Row == nil {
		kind.Columns = []Column{NameColumn, AgeColumn}
		kind.Row = func(obj runtime.Object, now time.Time) []any {
			m, err := meta.Accessor(obj)
			if err != nil {
				return []any{"", "<unknown>"}
			}
			return []any{m.GetName(), Age(m.GetCreationTimestamp(), now)}
		}
	}
	c := &Convertor{row: kind.Row, defs: make([]metav1.TableColumnDefinition, len(kind.Columns))}
	for i, col := range kind.Columns {
		d := metav1.TableColumnDefinition{Name: col.Name, Type: col.Type, Format: col.Format,
			Description: col.Description}
		if d.Type == "" {
			d.Type = "string"
		}
		if d.Description == "" {
			d.Description = col.Name
		}
		if col.Wide {
			d.Priority = 1
		}
		c.defs[i] = d
	}
	return c
}

// ConvertToTable implements rest.TableConvertor for an object or a list.
func (c *Convertor) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	t := &metav1.Table{}
	if l, err := meta.ListAccessor(obj); err == nil {
		t.ResourceVersion, t.Continue, t.RemainingItemCount = l.GetResourceVersion(), l.GetContinue(),
			l.GetRemainingItemCount()
	} else if m, err := meta.CommonAccessor(obj); err == nil {
		t.ResourceVersion = m.GetResourceVersion()
	}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		t.ColumnDefinitions = c.defs
	}
	now := time.Now()
	add := func(o runtime.Object) error {
		t.Rows = append(t.Rows, metav1.TableRow{Cells: c.row(o, now), Object: runtime.RawExtension{Object: o}})
		return nil
	}
	if meta.IsListType(obj) {
		t.Rows = make([]metav1.TableRow, 0, meta.LenList(obj))
		return t, meta.EachListItem(obj, add)
	}
	return t, add(obj)
}

// Age returns the time from t to now in kubectl's short form.
func Age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}
