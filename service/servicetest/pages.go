package servicetest

// PageEdges returns the row counts around the boundaries of pages of this size.
func PageEdges(page int) []int {
	return []int{0, 1, page - 1, page, page + 1, 2 * page, 2*page + 1}
}
