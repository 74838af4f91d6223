//! A line diff of two texts, with some context.

/// The differing lines, each with its sign.
pub(crate) fn diff_lines(expected: &str, actual: &str) -> String {
    const AROUND: usize = 2;
    let lines = line_edits(&expected.lines().collect::<Vec<_>>(), &actual.lines().collect::<Vec<_>>());
    let is_near = |at: usize| {
        let mut around = lines.iter().skip(at.saturating_sub(AROUND)).take(at.min(AROUND) + AROUND + 1);
        around.any(|(sign, _)| *sign != ' ')
    };
    let near = lines.iter().enumerate().filter(|(at, _)| is_near(*at));
    near.map(|(_, (sign, line))| format!("  {sign} {line}\n")).collect()
}

/// The shortest edit script between two lists of lines, from the table of longest common suffixes.
fn line_edits<'t>(from: &[&'t str], to: &[&'t str]) -> Vec<(char, &'t str)> {
    let mut common = vec![vec![0_usize; to.len() + 1]; from.len() + 1];
    for row in (0..from.len()).rev() {
        for column in (0..to.len()).rev() {
            common[row][column] = if from[row] == to[column] {
                common[row + 1][column + 1] + 1
            } else {
                common[row + 1][column].max(common[row][column + 1])
            };
        }
    }
    let (mut row, mut column, mut lines) = (0, 0, Vec::new());
    while row < from.len() || column < to.len() {
        if row < from.len() && column < to.len() && from[row] == to[column] {
            lines.push((' ', from[row]));
            (row, column) = (row + 1, column + 1);
        } else if column == to.len() || row < from.len() && common[row + 1][column] >= common[row][column + 1] {
            lines.push(('-', from[row]));
            row += 1;
        } else {
            lines.push(('+', to[column]));
            column += 1;
        }
    }
    lines
}

#[test]
fn shows_a_difference_with_context() {
    let expected = "a\nb\nc\nd\ne\nf\ng\n";
    assert_eq!(diff_lines(expected, "a\nb\nc\nd\nx\nf\ng\n"), "    c\n    d\n  - e\n  + x\n    f\n    g\n");
    assert_eq!(diff_lines(expected, "a\nb\nc\nd\ne\nf\ng\nh\n"), "    f\n    g\n  + h\n");
    assert_eq!(diff_lines(expected, expected), "");
}
